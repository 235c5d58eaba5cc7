"""Reports: the trace viewer (one HTML file), and the figures for papers (`sinkscope.report.figures`)."""

from sinkscope.report.html import PageParts, page, viewer_page, viewer_parts, write_viewer

__all__ = ["PageParts", "page", "viewer_page", "viewer_parts", "write_viewer"]
