"""Build the documentation site.

python -m tools.docs_site build/site   write it; open build/site/index.html

The pages are staged in a folder beside the output. The build needs no network, and neither do the
pages: they work from disk.
"""

import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from tools.docs_site.stage import stage_pages


def build_site(out: Path) -> int:
    """Stage the pages, build them with warnings as errors and return Sphinx's exit code."""
    source = out.with_name(out.name + "-source")
    stage_pages(source)
    doctrees = out.with_name(out.name + "-doctrees")
    options = ["-b", "html", "-q", "-W", "--keep-going", "-d", str(doctrees)]
    return build_main([*options, str(source), str(out)])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.docs_site FOLDER")
    sys.exit(build_site(Path(sys.argv[1])))
