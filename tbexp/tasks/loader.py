"""Reading a dataset: from a root folder and selectors to tasks, with every problem found in one pass.

Decided here: how names are resolved to files, what a task inherits from agent, scenario, conftest files and recorded
histories, and that loading is strict. Left to others: the parts of a file (test_files.py, blocks.py), rows of hydrated
tasks (dump.py), and what the tasks are used for.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tbexp.errors import Problem, UserError
from tbexp.tasks import blocks, definitions
from tbexp.tasks.blocks import nearest
from tbexp.tasks.dump import read_rows
from tbexp.tasks.history import History, referenced
from tbexp.tasks.records import UNLIMITED, Agent, Scenario, Tags, Task, Unhydrated, servers_needed
from tbexp.tasks.selectors import split_selector
from tbexp.tasks.test_files import Case, TestFile


def load_tasks(
    root: Path,
    agent: str,
    selectors: Sequence[str] | None = None,
    *,
    within: Path | None = None,
    format_query: bool = True,
) -> list[Task]:
    """The tasks of a dataset, hydrated.

    root: a folder with `dataset/`, the dataset folder itself, or a .jsonl file of hydrated tasks (whose agent is in
    each row, so `agent` is not used). selectors: which tasks, in this order; None: all, sorted by uid, without skipped
    ones, or, where `within` is a test file or a folder of them, all in there. format_query: False takes this field
    from every task, as ThinkingBox does. UserError with all problems at once, each with file and line, and the nearest
    names of an unknown selector.
    """
    root = Path(root)
    tasks = _from_rows(root, selectors) if root.suffix == ".jsonl" else _from_folder(root, agent, selectors, within)
    return tasks if format_query else [replace(task, format_query=False) for task in tasks]


def _from_folder(root: Path, agent: str, selectors: Sequence[str] | None, within: Path | None) -> list[Task]:
    problems: list[Problem] = []
    dataset = Dataset(root, problems)
    tasks: list[Task] = []
    if not problems:
        read_agent = definitions.read_agent(dataset.folder, agent, problems)
        chosen = dataset.all_cases(within) if selectors is None else dataset.chosen(selectors)
        tasks = [task for task in (dataset.task(file, case, read_agent) for file, case in chosen) if task]
        if selectors is None:
            tasks = sorted((task for task in tasks if not task.tags.skip), key=lambda task: task.uid)
        else:
            problems += [
                Problem("is tagged skip, so it cannot be selected", task.uid) for task in tasks if task.tags.skip
            ]
    if problems:
        raise Unhydrated(_once(problems), dataset.needs)
    if selectors is None and not tasks:
        raise UserError(Problem("no test is here", str(within or dataset.folder / "test_case")))
    return tasks


class Dataset:
    """A dataset folder while it is read; each file is parsed once, and problems are noted in one list."""

    def __init__(self, root: Path, problems: list[Problem]):
        self.problems = problems
        self.needs: dict[str, list[str]] = {}  # server -> uids
        self.folder = root / "dataset" if (root / "dataset").is_dir() else root
        self._files: dict[Path, TestFile] = {}
        self._scenarios: dict[str, Scenario | None] = {}
        self._histories: dict[Path, History] = {}
        self._fixtures: dict[Path, dict[str, Any]] = {}
        if not (self.folder / "test_case").is_dir():
            problems.append(Problem("no dataset here: it needs dataset/test_case/", str(root)))

    @cached_property
    def _index(self) -> dict[str, list[Path]]:
        """Every test file by its base name, in sorted order."""
        index: dict[str, list[Path]] = {}
        for path in sorted((self.folder / "test_case").rglob("*")):
            test = path.suffix in (".py", ".yaml") and not path.name.endswith(".meta.yaml")
            if test and path.name not in ("conftest.yaml", "conftest.py", "__init__.py") and path.is_file():
                index.setdefault(path.name, []).append(path)
        return index

    def resolve(self, name: str, where: str) -> Path | None:
        """The file that a selector's file name means: the first of the places that the format names, then anywhere."""
        top = self.folder / "test_case"
        parts = name.split("_")
        places = [name, *(f"{'_'.join(parts[:k])}/{name}" for k in range(len(parts) - 1, 0, -1))]
        for place in (*places, f"{Path(name).stem}/{name}"):
            if blocks.is_file(top / place):
                return top / place
        found = self._index.get(name, [])
        if len(found) > 1:
            several = ", ".join(str(path.relative_to(top)) for path in found)
            self.problems.append(Problem(f"{name} may be any of {several}", where, "give one of them another name"))
        elif not found:
            near = nearest(name, self._index)
            fix = f"did you mean {' or '.join(near)}?" if near else ""
            self.problems.append(Problem(f"no file {name} under {top}", where, fix))
        return found[0] if len(found) == 1 else None

    def file(self, path: Path) -> TestFile:
        """A test file, parsed when it is first asked for."""
        if path not in self._files:
            self._files[path] = TestFile(path, self.problems)
        return self._files[path]

    def all_cases(self, within: Path | None) -> list[tuple[TestFile, Case]]:
        """Every test of the folder, or of a part of it; two tests of one uid are a problem."""
        found: dict[str, str] = {}
        cases = []
        for paths in self._index.values():
            for path in paths:
                if within is not None and not path.resolve().is_relative_to(within.resolve()):
                    continue
                if ":" in path.name:
                    what = "can be in no selector <file>:<test>, since its name has a :"
                    self.problems.append(Problem(what, str(path), "give it another name"))
                    continue
                for case in self.file(path).cases(self.file(path).names):
                    uid, where = f"{path.name}:{case.name}", case.block.at()
                    if uid in found:
                        self.problems.append(Problem(f"uid {uid} is also that of {found[uid]}", where))
                    found.setdefault(uid, where)
                    cases.append((self.file(path), case))
        return cases

    def chosen(self, selectors: Sequence[str]) -> list[tuple[TestFile, Case]]:
        """The tests of these selectors in their order; an unknown, skipped or repeated one is a problem."""
        seen: dict[str, str] = {}
        paths: dict[str, Path | None] = {}
        cases = []
        for selector in selectors:
            where = getattr(selector, "origin", "") or selector
            split = split_selector(selector)
            if split is None:
                self.problems.append(Problem(f"{selector!r} is not of the form <file>:<test>", where))
                continue
            if selector in seen:
                self.problems.append(Problem(f"{selector} is selected twice", where))
                continue
            seen[selector] = where
            name, test = split
            if name not in paths:
                paths[name] = self.resolve(name, where)
            path = paths[name]
            if path is None:
                continue
            file = self.file(path)
            if test not in file.names and not file.broken:
                self._unknown(file, test, where)
            for case in file.cases([test]):
                cases.append((file, case))
        return cases

    def _unknown(self, file: TestFile, test: str, where: str) -> None:
        near = [f"{file.path.name}:{name}" for name in nearest(test, file.names)]
        if not near:
            other = [f"{path.name}:{name}" for path, known in self._files.items() for name in known.names]
            near = nearest(f"{file.path.name}:{test}", other)
        fix = f"did you mean {' or '.join(near)}?" if near else ""
        self.problems.append(Problem(f"no test {test} in {file.path}", where, fix))

    def task(self, file: TestFile, case: Case, agent: Agent | None) -> Task | None:
        """The task that a test is; None when something about it, which was noted, is wrong."""
        block, fields = case.block, case.fields
        name = fields.get("scenario")
        if "scenario" not in block.values:
            self.problems.append(Problem(f"test {case.name} needs the key scenario", block.at()))
        scenario = self._scenario(name, block.at("scenario")) if name is not None else None
        history = self._history(file.path, case)
        uid = f"{file.path.name}:{case.name}"
        tags = definitions.read_tags(fields.get("tags", [])).under(scenario.tags if scenario else Tags())
        for server in {**(scenario.world_state if scenario else {}), **fields.get("init", {})} if not tags.skip else ():
            self.needs.setdefault(server, []).append(uid)
        if scenario is None:
            return None
        fixtures = self._conftest(file.path.parent) | dict(scenario.fixtures)
        self.problems += definitions.missing_fixtures(case.fixtures, fixtures, case.name, block.at())
        if agent is None:
            return None
        self.problems += definitions.offered_twice(agent, scenario, block.at("scenario"))
        if "query" not in fields:
            return None
        return Task(
            uid=uid,
            agent=agent,
            scenario=scenario,
            query=fields["query"],
            user_context=fields.get("user_context"),
            test_code=case.code,
            init={server: part or {} for server, part in fields.get("init", {}).items()},
            bot_instructions=fields.get("bot_instructions"),
            max_user_sim_turns=fields.get("max_user_sim_turns", 10),
            max_agent_sim_turns=fields.get("max_agent_sim_turns", UNLIMITED),
            history=history,
            format_query=fields.get("format_query", False),
            metadata={
                "scenario": scenario.name,
                **fields.get("metadata", {}),
                "agent": agent.name,
                "test_case_file": str(file.path.absolute()),
                "test_case_name": case.name,
            },
            tags=tags,
            fixtures=fixtures,
        )

    def _scenario(self, name: str, where: str) -> Scenario | None:
        known = self._scenarios.get(name)
        # One that is missing is told wherever it is named, what is wrong in one that is there only once.
        if name not in self._scenarios or (known is None and not definitions.exists(self.folder, "scenario", name)):
            self._scenarios[name] = known = definitions.read_scenario(self.folder, name, where, self.problems)
        return known

    def _history(self, path: Path, case: Case) -> tuple[dict[str, Any], ...] | None:
        reference = case.fields.get("history")
        if reference is None:
            return None
        meta = path.with_name(f"{path.stem}.meta.yaml")
        if meta not in self._histories:
            self._histories[meta] = History(meta, self.problems)
        return referenced(self._histories[meta], reference, case.block.at("history"), self.problems)

    def _conftest(self, folder: Path) -> dict[str, Any]:
        """The fixtures declared from test_case/ down to a folder; the deeper declaration replaces the other."""
        if folder not in self._fixtures:
            above = {} if folder == self.folder / "test_case" else self._conftest(folder.parent)
            self._fixtures[folder] = above | definitions.read_conftest(folder / "conftest.yaml", self.problems)
        return copy.deepcopy(self._fixtures[folder])


def _from_rows(file: Path, selectors: Sequence[str] | None) -> list[Task]:
    try:
        tasks = {task.uid: task for task in read_rows(file)}
    except Unhydrated as error:
        wanted = None if selectors is None else {str(selector) for selector in selectors}
        raise error.of(wanted) from None
    chosen = sorted((task for task in tasks.values() if not task.tags.skip), key=lambda task: task.uid)
    if not tasks or (selectors is None and not chosen):
        raise UserError(
            Problem("no task is here", str(file), "write rows of hydrated tasks into it, or name another tasks.root")
        )
    if selectors is None:
        return chosen
    problems = []
    seen: set[str] = set()
    for selector in selectors:
        where = getattr(selector, "origin", "") or selector
        if selector not in tasks:
            near = nearest(selector, tasks)
            fix = f"did you mean {' or '.join(near)}?" if near else ""
            problems.append(Problem(f"no task {selector} in {file}", where, fix))
        elif selector in seen:
            problems.append(Problem(f"{selector} is selected twice", where))
        seen.add(selector)
    if problems:
        raise Unhydrated(problems, servers_needed(tasks[selector] for selector in selectors if selector in tasks))
    return [tasks[selector] for selector in selectors]


def _once(problems: list[Problem]) -> list[Problem]:
    """Each problem once: what a module block gets wrong would otherwise be told for every test below it."""
    return list(dict.fromkeys(problems))
