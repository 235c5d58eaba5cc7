"""sinkscope: an instrument for attention sinks in language models that generate step by step.

The public names stand in `__init__.pyi`, once, for readers, type checkers and the program alike. They are imported when first
used, so that `import sinkscope` and `sinkscope --help` stay fast and a machine without xarray or pandas can still load and
generate.
"""

import lazy_loader

from sinkscope.trace import RENDERERS

RENDERERS.update(
    html="sinkscope.report.html:write_viewer",
    widget="sinkscope.report.notebook:trace_widget",
    preview="sinkscope.report.notebook:trace_preview",
)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
