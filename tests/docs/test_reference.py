"""The generated pages of docs/reference: verbs and rules. `--update-golden` writes them."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pytest

from launch.check.machine.rules import RULES
from launch.commands.verbs import VERB_GROUPS, VERBS, VISIBLE, help_text, overview
from launch.config.allow import allowable_ids
from launch.config.line import format_value
from launch.execution.guards import GUARDS
from launch.planning.rules.register import RULES as PLAN_RULES
from launch.rules.code import CodeRule
from launch.rules.facts import Place
from launch.rules.table import Rule
from launch.rules.table import table as table_of_rules
from launch.trials.rollout.gates_across import GATES
from launch.worker.finding import Action, Fix
from launch.worker.patches import PATCHES
from launch.worker.trl_options import OPTIONS
from tests.paths import ROOT

REFERENCE = ROOT / "docs" / "reference"
# what somebody does when a message comes, and where its source is
DOING = {
    "Typing a command": (
        "__main__",
        "commands",
        "config/line",
        "config/shorthand",
        "errors",
        "terminal",
        "files",
    ),
    "Writing a stage, a recipe or a cluster": ("config",),
    "Preparing data": ("data",),
    "Planning a run": ("planning", "api/planning", "demo"),
    "Choosing a trainer and its flags": ("upstream",),
    "Checking scripts and this machine": ("check", "host"),
    "Running, resuming and stopping": ("execution", "api"),
    "Running a pipeline": ("pipelines",),
    "Evaluating, generating and comparing": ("evaluation",),
    "Comparing settings: rollout, bench, tune, trial": ("trials",),
    "Submitting to Slurm": ("slurm",),
    "Comparing or moving the pin with `python -m maintain`": ("maintain/",),
    "Anything else": ("",),
}


def verbs_page() -> str:
    """Return the help of every verb."""
    lines = [
        "# Verbs",
        "",
        "Generated from `launch help`. Exit codes are explained [here](exit-codes.md).",
        "",
    ]
    lines += ["```text", overview().rstrip(), "```"]
    for verb in (verb for group in VERB_GROUPS for verb in group if not verb.hidden):
        lines += ["", f"## {verb.name}", "", "```text", help_text(verb).rstrip(), "```"]
    return "\n".join(lines) + "\n"


def rules_page() -> str:
    """Return every rule, guard, gate and patch, and every message that has an id."""
    lines = [
        "# Rules",
        "",
        (
            "Generated from the source. `allow=[ID]` turns a finding that would stop into a warning: "
            "every rule of"
        ),
        "`check`, guard and gate, and what is marked `yes`.",
        "",
        "## Rules of plan and lint",
        "",
        (
            "The rows of `launch/rules/table.yaml`. `lint` applies a row as a warning, unless it is one "
            "of `plan` alone: a"
        ),
        (
            "command has no recipe, so that `lint` knows nothing of its keys. The cure is the one of the "
            "row; `plan` prints"
        ),
        "what of it works on the given line.",
        "",
        *table(("id", "severity", "applies", "message", "cure", "upstream"), rows_of_the_table()),
        "",
        "## Rules of plan that need code",
        "",
        (
            "What no row of the table can express: a function of `launch/planning/rules`. A warning "
            "stops nothing."
        ),
        "",
        *table(
            ("id", "severity", "reason", "message", "cure", "allow"),
            (
                (
                    f"`{rule.id}`",
                    rule.severity,
                    rule.summary,
                    *("<br>".join(texts_of(rule, argument)) for argument in (0, 1)),
                    "yes" if rule.allow and rule.severity == "error" else "",
                )
                for rule in PLAN_RULES
            ),
        ),
        "",
        "## Rules of check",
        "",
        *table(
            ("id", "reason", "message", "cure"),
            (
                (
                    f"`{rule.id}`",
                    rule.summary,
                    *("<br>".join(texts_of(rule, argument)) for argument in (0, 1)),
                )
                for rule in RULES
            ),
        ),
        "",
        "## Guards",
        "",
        *table(("id", "what it does"), ((f"`{guard.id}`", guard.summary) for guard in GUARDS)),
        "",
        "## Gates of a rollout",
        "",
        *table(("id", "reason"), ((f"`{gate.id}`", gate.summary) for gate in GATES)),
        "",
        "## Patches",
        "",
        (
            "A patch is applied in the trainer's process where a run needs it. It checks the "
            "upstream "
            "lines first."
        ),
        "",
        *table(
            ("id", "reason", "upstream"),
            ((f"`{patch.id}`", patch.reason, short(patch.upstream)) for patch in PATCHES.values()),
        ),
        "",
        "## Options of launch's entry over TRL",
        "",
        (
            "`trl_sft`, `trl_dpo` and `trl_kto` train with TRL as a library, with the flags of "
            "`trl sft`, `trl dpo` and `trl kto`. What they do"
        ),
        (
            "beside the flags is an option of the run ([what "
            "differs](../explanation/upstream.md#trl-is-a-library))."
        ),
        "",
        *table(
            ("id", "what it does"),
            ((f"`{name}`", option.meaning) for name, option in OPTIONS.items()),
        ),
        "",
        "## Messages",
        "",
        (
            "Every message of the launcher ends with one of these ids. What varies is in capitals; "
            "a "
            "printed message has"
        ),
        (
            "its values filled in. They are grouped by what you are doing when a message can first "
            "come."
        ),
    ]
    allowable, left = allowable_ids(), messages()
    for doing, rooms in DOING.items():
        names = sorted(
            name
            for name, found in left.items()
            if any(path.startswith(rooms) for path in found.paths)
        )
        group = [(name, left.pop(name)) for name in names]
        rows = (
            (
                f"`{name}`",
                short(tuple(found.texts), 12),
                short(tuple(found.cures), 12),
                "yes" if name in allowable else "",
            )
            for name, found in group
        )
        lines += ["", f"### {doing}", "", *table(("id", "message", "cure", "allow"), rows)]
    assert not left, (
        f"in no group of DOING: {[(name, found.paths) for name, found in left.items()]}"
    )
    return "\n".join(lines) + "\n"


def table(
    head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]
) -> list[str]:
    cells = [
        head,
        ("---",) * len(head),
        *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows),
    ]
    return [f"| {' | '.join(row)} |" for row in cells]


def rows_of_the_table() -> Iterator[tuple[str, ...]]:
    """Yield a line for each row of the table, with all of its flags."""
    for _, group in groupby(table_of_rules(), key=lambda rule: rule.row):
        rules = list(group)
        rule = rules[0]
        cure = with_values(str(Fix.of(*rule.fix))) if rule.fix else ""
        message = with_values(rule.text_for(Place.plan))
        places = "<br>".join(rule.upstream)
        yield f"`{rule.id}`", rule.severity, applies(rules), message, cure, places


def applies(rules: list[Rule]) -> str:
    """Return when the rules of a row apply: its trainers, flags and conditions."""
    rule = rules[0]
    flags = ", ".join(f"`{each.flag}`" for each in rules if each.flag)
    parts = [f"{place} alone" for place in rule.places if len(rule.places) == 1]
    parts += [", ".join(rule.trainers)] if rule.trainers else []
    conditions = []
    for name, needed in sorted(rule.when.items(), key=lambda entry: entry[0] != rule.flag):
        subject = "" if name == rule.flag else f"`{name}` "
        for condition, operand in needed.items():
            values = operand if isinstance(operand, list) else [operand]
            value = " or ".join(map(format_value, values))
            if condition in ("given", "named"):
                value = "" if operand else "not "
            conditions.append(f"{subject}{CONDITION[condition].format(value)}")
    conditions += [f"`{rule.undoes}` is set"] if rule.undoes else []
    conditions += [f"unless `{other}` is {value}" for other, value in rule.needs.items()]
    shown = [condition for condition in conditions if condition]
    text = "; ".join(shown)
    if flags and text.startswith("`"):  # a condition on another name
        text = f"where {text}"
    return ": ".join([*parts, " ".join(filter(None, [flags, text]))])


# How a condition of the table reads on the page; who sets a flag is left out.
CONDITION = {
    "is": "is {}",
    "not": "is not {}",
    "given": "is {}given",
    "below": "is below {}",
    "above": "is above {}",
    "outside": "is outside `{}`",
    "contains": "contains `{}`",
    "matches": "matches `{}`",
    "matches_not": "does not match `{}`",
    "lacks": "has none of {}",
    "length": "has an {} number of values",
    "count_to": "has a count of at most {}",
    "named": "is {}a name that the trainer knows",
    "from": "",
    "not_from": "",
}


def short(texts: tuple[str, ...], most: int = 3) -> str:
    """Return texts as the lines of a cell: the first ones, and how many more there are."""
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return "<br>".join([*texts[:most], *more])


def texts_of(rule: CodeRule, argument: int) -> list[str]:
    """Return the messages (argument 0) or the cures (1) of a rule, from its calls of
    `failed` and `warned`, and from those of the functions of its module that it calls.
    """
    module = inspect.getmodule(rule.judge)
    assert module is not None
    functions = {
        node.name: node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.FunctionDef)
    }
    name = getattr(rule.judge, "__name__", "")
    texts: dict[str, None] = {}
    for function in called_functions(functions[name], functions):
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or len(call.args) <= argument:
                continue
            if ast.unparse(call.func) in ("failed", "warned"):
                texts[template(call.args[argument], function, call.lineno)] = None
    return [text for text in texts if text]


def called_functions(
    function: ast.FunctionDef, functions: dict[str, ast.FunctionDef]
) -> list[ast.FunctionDef]:
    """Return a function and the functions of its module that it calls, directly or not."""
    found = [function]
    for current in found:  # which grows
        for call in ast.walk(current):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                called = functions.get(call.func.id)
                if called is not None and called not in found:
                    found.append(called)
    return found


@dataclass
class Message:
    """The texts and cures of an id, and the files that have it."""

    texts: list[str] = field(default_factory=list)
    cures: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


# what makes a message of an id and a text, and the place of the cure if it is not given by name
MAKERS = {"Finding.error": 3, "Finding.warning": 3, "refusal": 3, "error": 4, "warning": 4}


def messages() -> dict[str, Message]:
    """Return the messages of each id, by the calls of MAKERS and the table of rules."""
    found: defaultdict[str, Message] = defaultdict(Message)
    for rule in table_of_rules():
        path = "check/lint" if rule.only == Place.lint else "planning"
        cure = with_values(str(Fix.of(*rule.fix))) if rule.fix else ""
        add_message(found[rule.id], with_values(rule.message), cure, path)
    for place, path in source_files():
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                maker = ast.unparse(call.func)
                if maker in MAKERS and len(call.args) > 1:
                    name, text = call.args[:2]
                    by_name = [word.value for word in call.keywords if word.arg == "cure"]
                    given = [*call.args[MAKERS[maker] :], *by_name]
                    message = template(text, function, call.lineno)
                    cure = template(given[0], function, call.lineno) if given else ""
                    if isinstance(name, ast.Constant) and message:
                        add_message(found[name.value], message, cure, place)
    return dict(found)


def with_values(text: str) -> str:
    """Return a text of the table with what varies in capitals."""
    return re.sub(r"\{([a-z_.]+)\}", lambda name: name[1].rpartition(".")[2].upper(), text)


def source_files() -> Iterator[tuple[str, Path]]:
    """Yield the modules that make messages: those of launch by their path below launch/, and those
    of the maintainers' tools by their path in the project.
    """
    for path in sorted((ROOT / "launch").rglob("*.py")):
        yield path.relative_to(ROOT / "launch").as_posix(), path
    for path in sorted((ROOT / "maintain").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path


def add_message(message: Message, text: str, cure: str, path: str) -> None:
    for texts, added in ((message.texts, text), (message.cures, cure)):
        texts.extend({added} - {"", *texts})
    message.paths.append(path)


def template(node: ast.expr, function: ast.FunctionDef, line: int) -> str:
    """Return the text of a message, what varies in capitals; "" if it is not written as a text near
    its use.
    """
    if isinstance(node, ast.Name):
        before = [
            statement
            for statement in ast.walk(function)
            if isinstance(statement, ast.Assign)
            and statement.lineno <= line
            and node.id in map(ast.unparse, statement.targets)
        ]
        if not before:
            return ""
        last = max(before, key=lambda each: each.lineno)
        # what the value names was assigned above it
        return template(last.value, function, last.lineno - 1)
    if isinstance(node, ast.Constant | ast.JoinedStr):
        return placeholder(node)
    return template_of_choice(node, function, line)


def template_of_choice(node: ast.expr, function: ast.FunctionDef, line: int) -> str:
    """Return the text of a cure that is a value, one of two, or longer with a part that is not
    always there.
    """
    if isinstance(node, ast.BinOp):
        return template(node.left, function, line)
    if isinstance(node, ast.IfExp):
        return template(node.body, function, line) or template(node.orelse, function, line)
    if isinstance(node, ast.BoolOp):
        return template(node.values[-1], function, line)
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    if isinstance(node, ast.Call) and name == "Fix":
        return template(node.args[0], function, line)
    if isinstance(node, ast.Call) and name == "Fix.of":
        sentence, *actions = (
            template(part, function, line) or placeholder(part) for part in node.args
        )
        return re.sub(
            r"\{(\d)\}",
            lambda place: str(Action.parse((actions[int(place[1]) :] or ["KEY=VALUE"])[0])),
            sentence,
        )
    return "set KEY=VALUE" if name == "set_any" else ""


INNER = {
    ast.Subscript: "value",
    ast.BinOp: "left",
    ast.GeneratorExp: "elt",
    ast.ListComp: "elt",
    ast.FormattedValue: "value",
    ast.Starred: "value",
}


def placeholder(node: ast.expr) -> str:
    """Return the text of a part of a message: of a value a word in capitals, the last name in its
    expression.
    """
    if isinstance(node, ast.JoinedStr):
        return "".join(map(placeholder, node.values))
    if isinstance(node, ast.Constant):
        return str(node.value or "")
    if isinstance(node, ast.IfExp):
        return max(placeholder(node.body), placeholder(node.orelse), key=len)
    if isinstance(node, ast.Call):
        is_method = isinstance(node.func, ast.Attribute) and not node.args
        return (
            "N"
            if ast.unparse(node.func) == "len"
            else placeholder(node.func if is_method else (node.args or [node.func])[0])
        )
    if type(node) in INNER:
        return placeholder(getattr(node, INNER[type(node)]))
    return (getattr(node, "id", None) or getattr(node, "attr", None) or "value").strip("_").upper()


@pytest.mark.parametrize(("name", "render"), [("verbs.md", verbs_page), ("rules.md", rules_page)])
def test_the_page_is_current(
    name: str,
    render: Callable[[], str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # help is wrapped at it
    page = REFERENCE / name
    now = render()
    if request.config.getoption("--update-golden"):
        page.write_text(now, encoding="utf-8")
    written = page.read_text(encoding="utf-8")
    diff = "\n".join(
        difflib.unified_diff(written.splitlines(), now.splitlines(), name, "now", lineterm="")
    )
    assert written == now, (
        f"{diff}\nif the change is meant: scripts/test --update-golden tests/docs"
    )


@pytest.mark.parametrize("name", VISIBLE)
def test_the_help_of_a_verb_begins_with_examples_and_is_short(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    lines = help_text(VERBS[name]).splitlines()
    assert lines[0].startswith("usage: launch ") and name in lines[0]
    assert "examples:" in lines[:6], "examples come first"
    assert (
        any(line.startswith(f"  launch {name}") or "--version" in line for line in lines)
        or name == "run"
    )
    assert len(lines) < 40 and max(map(len, lines)) <= 120


def test_hidden_verbs_are_not_listed() -> None:
    assert "\n  node" not in overview() and "node" not in VISIBLE


def test_the_readme_is_short_and_its_table_has_verbs_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) < 940
    assert "`./scripts/test`" in readme and "`./scripts/test --all`" in readme
    rows = re.findall(r"^\| (`.*?) \|", readme.partition("## Verbs")[2], re.MULTILINE)
    named = [text.split()[0] for row in rows for text in re.findall(r"`([^`]+)`", row)]
    assert len(rows) == 8 and len(named) > 15 and set(named) <= set(VISIBLE)


def test_every_page_is_reachable_and_every_relative_link_leads_somewhere() -> None:
    """`mkdocs build --strict` checks the site; this also holds for the README and without the group
    docs.
    """
    broken = []
    for page in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))):
        for target in links(page.read_text(encoding="utf-8")):
            name, _, anchor = target.partition("#")
            path = page.parent / name
            if not path.exists() or (
                anchor and path.suffix == ".md" and anchor not in anchors(path)
            ):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken


def anchors(page: Path) -> set[str]:
    """Return the ids of a page's headings, as GitHub and mkdocs form them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (
        re.sub(r"[^\w\s-]", "", re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text)) for text in headings
    )
    return {re.sub(r"\s+", "-", text.strip().lower()) for text in plain}


def links(text: str) -> Iterator[str]:
    inside_code = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            inside_code = not inside_code
        if inside_code:
            continue
        for part in line.split("](")[1:]:
            target = part.partition(")")[0].partition(" ")[0]
            if target and "://" not in target and not target.startswith(("#", "mailto:")):
                yield target


def page_title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0]


def test_every_page_begins_with_a_title() -> None:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        assert page_title(page).startswith("# "), page


def test_no_message_needs_a_clone_or_leaves_a_part_of_its_cure_out() -> None:
    """What only a clone has is behind `resources.IN_CLONE`; `{"prompt": "..."}` is an example of a
    row.
    """
    cures = {name: " ".join(message.cures) for name, message in messages().items()}
    assert len(cures) > 250
    assert not {
        name: cure
        for name, cure in cures.items()
        if re.search(r"\./scripts|\bdocs/|submodule|constraints", cure)
    }
    assert {
        name
        for name, cure in cures.items()
        if "..." in cure.replace('"..."', "").replace("`rollout ...", "")
    } == set()
