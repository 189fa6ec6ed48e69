"""The documentation keeps up with the code."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "depthbench"


def test_the_architecture_page_has_a_line_for_every_file():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    missing = [path.name for path in sorted(SOURCE.rglob("*.py")) if path.name != "__init__.py" and f" {path.name} " not in page]
    assert not missing


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for part in page.read_text(encoding="utf-8").split("](")[1:]:
            target = part.split(")")[0].split("#")[0]
            if target and "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
