"""What action.yml tells GitHub: annotations and the text of a comment, from a report.

    python scripts/action.py annotations REPORT
    python scripts/action.py comment REPORT --name NAME
    python scripts/action.py earlier --name NAME        comments of a pull request as JSON on stdin; prints an id

Runs with nothing but an installed draftconv beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from draftconv.report import Report, read_report
from draftconv.report.formatting import sentence
from draftconv.report.verdict import Outcome

LEVELS: dict[Outcome, str] = {
    "pass": "notice",
    "equivalent": "notice",
    "fail": "error",
    "inconclusive": "error",
    "void": "error",
}
MOST = 60_000
"""Characters of a comment; GitHub refuses more than 65,536."""
CUT = "\n\nThe rest is in the report that this run keeps.\n"


def escaped(text: str) -> str:
    """Text as the message of a workflow command: GitHub reads commands at the beginning of any line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def workflow_commands(report: Report) -> Iterator[str]:
    """A workflow command for every comparison and for every fault that went unnoticed."""
    for comparison in report.comparisons:
        outcome = comparison.verdict.outcome
        yield f"::{LEVELS[outcome]} title=Accept-length parity%3A {outcome}::{escaped(sentence(comparison))}"
    for control in report.controls:
        if control.caught is False:
            yield f"::error title=Accept-length parity%3A control::{escaped(control.name)} was not noticed"


def marker(name: str) -> str:
    """First line of a comment, by which a later run finds it. Not every name can stand in an HTML comment."""
    quoted = json.dumps(name).replace("-", r"\u002d").replace(">", r"\u003e")
    return f"<!-- draftconv parity: {quoted} -->"


def comment(page: str, name: str) -> str:
    """The report's own Markdown, cut at the end of a line where it is too long."""
    if len(page) > MOST:
        page = page[: page.rindex("\n", 0, MOST)] + CUT
    return f"{marker(name)}\n{page}"


def earlier(pages: str, name: str) -> int | None:
    """Id of the comment that an earlier run of this name wrote; `pages`: JSON lists, one after the other."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(pages.rstrip()):
        comments, at = decoder.raw_decode(pages, at)
        for one in comments:
            if str(one["body"]).startswith(marker(name)):
                return int(one["id"])
        while pages[at : at + 1].isspace():
            at += 1
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("annotations").add_argument("report", type=Path)
    writing = commands.add_parser("comment")
    writing.add_argument("report", type=Path)
    writing.add_argument("--name", required=True)
    commands.add_parser("earlier").add_argument("--name", required=True)
    given = parser.parse_args()
    match given.command:
        case "annotations":
            for line in workflow_commands(read_report(given.report)):
                print(line)
        case "comment":
            print(comment((given.report / "report.md").read_text(encoding="utf-8"), given.name), end="")
        case _:
            found = earlier(sys.stdin.read(), given.name)
            print("" if found is None else found)


if __name__ == "__main__":
    main()
