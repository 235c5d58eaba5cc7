"""The view in a notebook: the widget holds the page, and its state and the view follow each other."""

from __future__ import annotations

import builtins
import json

import pytest
from tests.report import browser as chromium
from tests.report import pages

from sinkscope.base.errors import InputError
from sinkscope.report import notebook
from sinkscope.trace.trace import Trace

HOST = """<!doctype html><meta charset=utf-8><title>host</title><div id=place></div>
<script type="application/json" id=given>GIVEN</script>
<script>
const given = JSON.parse(document.getElementById("given").textContent);
window.model = {
  values: { page: given.page, height: given.height, state: {} }, handlers: {}, saved: 0,
  get(name) { return this.values[name]; },
  set(name, value) { this.values[name] = value; this.handlers[`change:${name}`]?.(); },
  save_changes() { this.saved++; },
  on(name, act) { this.handlers[name] = act; },
  off(name) { delete this.handlers[name]; },
};
import(URL.createObjectURL(new Blob([given.esm], { type: "text/javascript" })))
  .then((module) => { window.leave = module.default.render({ model, el: document.getElementById("place") }); });
</script>"""


def test_the_widget_holds_the_view_of_the_trace():
    made = Trace(dataset=pages.diffusion()).to_widget(heads=[(1, 2)], height=500)
    assert made.height == 500
    assert 'data-host="on"' in made.page
    assert 'data-address="off"' in made.page
    assert '"full":{"1:2"' in made.page
    assert "default-src 'none'" in made.page
    assert {"page", "height", "state"} <= set(made.trait_names(sync=True))
    both = Trace(dataset=pages.diffusion()).to_widget(other=Trace(dataset=pages.causal()))
    assert '"compare":2' in both.page
    with pytest.raises(InputError, match="at least 200, got 5"):
        Trace(dataset=pages.diffusion()).to_widget(height=5)


def test_without_anywidget_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "anywidget":
            raise ImportError(name)
        return real(name, *rest)

    notebook._widget_class.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'sinkscope\[notebook\]'"):
        Trace(dataset=pages.diffusion()).to_widget()


@pytest.mark.browser
@pytest.mark.skipif(chromium.find() is None, reason="needs Chromium (apt-get install chromium), and none is installed")
def test_state_and_view_follow_each_other(shared, tmp_path):
    from sinkscope.report.html import embedded_json

    made = Trace(dataset=pages.diffusion()).to_widget()
    given = embedded_json({"page": made.page, "height": made.height, "esm": made._esm})
    (tmp_path / "host.html").write_text(HOST.replace("GIVEN", given), encoding="utf-8")
    shared.call("Emulation.setEmulatedMedia", media="", features=[])
    shared.open(tmp_path / "host.html", ready="document.querySelector('iframe') !== null")
    assert shared.js("document.querySelector('iframe').getAttribute('sandbox')") == "allow-scripts allow-downloads"
    # Asked again until the frame has loaded and answers.
    shared.until(
        "(() => { if (model.saved) return true; model.values.state = {step: 7, layer: 1, evil: 'x'};"
        " model.handlers['change:state'](); return false; })()"
    )
    state = json.loads(shared.js("JSON.stringify(model.values.state)"))
    assert state == {
        "a": 0,
        "b": -1,
        "step": 7,
        "layer": 1,
        "head": -1,
        "score": "",
        "key": -1,
        "show": "",
        "diff": 0,
        "find": "",
    }
    shared.js("model.set('state', {step: 9999})")
    shared.until("model.values.state.step === 23")
    shared.js("model.set('height', 400)")
    assert shared.js("document.querySelector('iframe').getBoundingClientRect().height") == 400
    saved = shared.js("model.saved")
    shared.js("leave()")
    assert shared.js("Object.keys(model.handlers).length") == 0
    shared.js("window.postMessage({sinkscope: {step: 1}}, '*')")
    assert shared.js("model.saved") == saved
    assert shared.problems() == []
