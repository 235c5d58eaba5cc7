"""The page is safe with hostile texts, readable in the dark and on paper, and usable without eyes or mouse."""

from __future__ import annotations

import base64

import pytest
from tests.report import browser as chromium
from tests.report import pages
from tests.report.driving import APP, MAP, STATE

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium.find() is None, reason="needs Chromium (apt-get install chromium), and none is installed"
    ),
]


def test_dark_mode_follows_the_system(page):
    look = "[getComputedStyle(document.body).backgroundColor, document.querySelector('.card.main canvas.base').toDataURL()]"
    light, first = page.js(look)
    page.media(prefers_color_scheme="dark")
    dark, second = page.js(look)
    assert light == "rgb(242, 241, 237)"
    assert dark == "rgb(15, 16, 21)"
    assert first != second, "pictures are drawn again"
    page.media()
    assert page.js(look) == [light, first]


def test_print_is_light_without_controls_and_shows_all_tokens(page):
    page.media(prefers_color_scheme="dark")
    dark = page.js(MAP)
    page.media(media="print", prefers_color_scheme="dark")
    seen = page.js(
        "[getComputedStyle(document.querySelector('.bar')).display, getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('.tokens')).maxHeight]"
    )
    assert seen == ["none", "rgb(255, 255, 255)", "none"]
    assert page.js(MAP) != dark, "pictures are drawn again for paper"
    assert page.js("document.querySelector('.token').style.color") == "rgb(0, 0, 0)"
    paper = base64.b64decode(page.call("Page.printToPDF", printBackground=True)["data"])
    assert paper.startswith(b"%PDF")
    assert len(paper) > 20_000


def test_hostile_texts_stay_text(page, folder):
    page.open(folder / "hostile.html")
    texts = page.js("[...document.querySelectorAll('.tokens .token')].map((t) => t.textContent)")
    assert "</script><img src=x oner…" in texts
    assert "⟨U+202E⟩right to left⟨U+200F⟩" in texts
    assert "⟨U+2028⟩⟨U+2029⟩⟨U+0000⟩⟨U+001B⟩" in texts
    assert "&lt;b&gt;&amp;" in texts
    assert "⟨U+DC80⟩ half a pair" in texts
    assert page.js("document.querySelector('h2').textContent") == "</title><script>window.hacked=9</script>"
    assert page.js("document.querySelectorAll('img, svg, iframe, object, embed, b').length") == 0
    first = page.js(f"{APP}.views[0].realKeys[0]")
    for i in range(len(pages.HOSTILE)):
        page.js(f"{APP}.set({{key: {first + i}}})")
        page.settle()
    page.js(f"{APP}.set({{key: {first + 3}}})")
    page.settle()
    said = page.js("document.querySelector('.live').textContent")
    assert "(10,000 characters)" in said
    assert page.js("document.documentElement.scrollWidth <= innerWidth"), "a long token does not widen the page"
    assert page.js("window.hacked") is None
    assert page.js("document.scripts.length") == 2


def test_a_screen_reader_and_a_keyboard_reach_everything(page):
    page.js(f"{APP}.set({{layer: 0, head: 0, key: 30}})")
    page.settle()
    page.call("Accessibility.enable")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    page.call("Accessibility.disable")
    names: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            names.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    for role in (
        "button",
        "combobox",
        "slider",
        "listbox",
        "application",
        "table",
        "columnheader",
        "region",
        "heading",
        "toolbar",
    ):
        assert names.get(role), role
        assert all(names[role]), f"every {role} has a name: {names[role]}"
    assert len(names["option"]) >= 41
    assert "mask" in names["option"]
    assert "position 24" in page.js("document.querySelector('.live').textContent")
    stops = page.js(
        "[...document.querySelectorAll('button, select, input, [tabindex]')]"
        ".filter((e) => !e.disabled && e.offsetParent).map((e) => e.tabIndex)"
    )
    assert len(stops) >= 16
    assert set(stops) == {0}
    page.js("document.querySelector('.tokens').focus()")
    page.press("ArrowRight")
    assert page.js(f"{STATE}.key") == 31
    assert (
        page.js(
            "document.getElementById(document.querySelector('.tokens').getAttribute('aria-activedescendant')).ariaSelected"
        )
        == "true"
    )
    page.js("document.querySelector('.card.main .front').focus()")
    page.press("Home")
    page.press("ArrowDown")
    assert page.js(f"{STATE}.step") == 1
    outline = page.js("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "focus can be seen"
