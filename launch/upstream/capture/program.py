"""Runs in the trainer's interpreter: starts its script, stops it at its own parser, and writes what the parser accepts,
or whether it accepts a command line.

    python program.py RESULT ENTRY [ROOT] < REQUEST    # ENTRY: a script below ROOT, or the name of an installed module

REQUEST is nothing, or the JSON of {"argv": the arguments to parse, "placeholders": launch's folder, where the run has
its placeholders for missing packages}. RESULT is JSON with `files` and `packages`, what was imported, and a schema
(`launch.upstream.schema`), `accepted`, `refused` or `error`. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import json
import os
import runpy
import sys
import traceback
import types
import typing
from pathlib import Path

# Names that upstream looks up while it runs: {flag: (module, dictionary)}.
REGISTRIES = {
    "chat_template_name": ("open_instruct.dataset_transformation", "CHAT_TEMPLATES"),
    "get_tokenizer_fn": ("open_instruct.dataset_transformation", "GET_TOKENIZER_FN"),
    "dataset_transform_fn": ("open_instruct.dataset_transformation", "TRANSFORM_FNS"),
    "olmo_presets": ("open_instruct.olmo_core_utils", "OLMO_MODEL_CONFIG_MAP"),
}
_HERE = Path(__file__).resolve().parent
_SEARCH_PATH = [folder for folder in sys.path if not folder or Path(folder).resolve() != _HERE]
_PARSE = ("parse", "parse_args_and_config", "parse_args_into_dataclasses", "parse_args", "parse_known_args")


class _StandInMeta(type):
    """Any attribute of a stand-in class is another one, so that a module's top level runs without the package."""

    def __getattr__(cls, name: str) -> typing.Any:
        return _StandInFields() if name == "__dataclass_fields__" else _stand_in(name)


class _StandInFields(dict[str, typing.Any]):
    """The fields of a stand-in for a dataclass: none, but each can be read and changed."""

    def __missing__(self, name: str) -> typing.Any:
        return types.SimpleNamespace(name=name)


def _stand_in(name: str) -> type:
    """Return what a missing module, or anything of it, has as an attribute; Python's own ones are missing."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _StandInMeta(name, (_StandIn,), {})


class _StandIn(metaclass=_StandInMeta):
    """What a missing package has: a class, whose instances also work as decorators."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __init_subclass__(cls, **_: object) -> None: ...

    def __class_getitem__(cls, _: object) -> type:
        return cls

    def __getattr__(self, name: str) -> typing.Any:
        return _stand_in(name)

    def __call__(self, *arguments: typing.Any, **_: object) -> typing.Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self


class _MissingPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that are not installed, where the trainer's own files import them."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.names: set[str] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        package = name.partition(".")[0]
        frame: types.FrameType | None = sys._getframe(1)
        while frame and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        imported_by = frame.f_code.co_filename if frame else ""
        if package not in self.names and not imported_by.startswith(self.root):
            return None
        if (Path(self.root) / package).exists() or (package in sys.modules and package not in self.names):
            return None  # a module that upstream or the installed package lacks
        self.names.add(package)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None: ...

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__getattr__"] = _stand_in


class _Capture:
    """Stops `entry` where its parser is given the command line: describes the parser, or has it parse `argv`."""

    def __init__(self, result: Path, entry: str, root: Path | None, argv: list[str] | None) -> None:
        self.result, self.entry, self.root, self.argv = result, entry, root, argv
        self.missing = _MissingPackages(root) if root and argv is None else None
        self.parses = False  # the parser has been called
        self.pid = os.getpid()

    def run(self) -> None:
        if self.missing:
            sys.meta_path.append(self.missing)
        self._watch_parsers()
        sys.argv = [self.entry, *(self.argv or ())]
        if self.root:
            sys.path.insert(0, str(self.root))
            runpy.run_path(str(self.root / self.entry), run_name="__main__")
        else:
            runpy.run_module(self.entry, run_name="__main__", alter_sys=True)

    def _watch_parsers(self) -> None:
        build = argparse.ArgumentParser.__init__

        def build_parser(parser: typing.Any, *arguments: typing.Any, **options: typing.Any) -> None:
            if any(cls.__name__ == "HfArgumentParser" for cls in type(parser).__mro__):
                frame: types.FrameType | None = sys._getframe(1)
                while frame and frame.f_locals.get("self") is parser:
                    frame = frame.f_back
                built_at = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)
                for name in _PARSE:
                    if method := getattr(parser, name, None):
                        vars(parser)[name] = functools.partial(self.stop, parser, built_at, method)
            build(parser, *arguments, **options)

        argparse.ArgumentParser.__init__ = build_parser  # type: ignore[assignment, method-assign]

    def stop(
        self,
        parser: typing.Any,
        built_at: tuple[str, int],
        method: typing.Any,
        *arguments: typing.Any,
        **options: typing.Any,
    ) -> typing.Any:
        """Take the place of the parser's methods: the first call is the script's, and its last."""
        if self.parses:
            return method(*arguments, **options)
        self.parses = True
        if self.argv is None:
            given = inspect.signature(method).bind(*arguments, **options).arguments
            keeps_unknown = bool(given.get("return_remaining_strings")) or method.__name__ == "parse_known_args"
            # whatever the script has put on the path
            description = runpy.run_path(str(_HERE / "description.py"))["Description"](self.root, _StandIn)
            schema = description.describe(parser, built_at, method.__name__, keeps_unknown=keeps_unknown)
            self.finish({"schema_version": 3, "entry": self.entry, **schema, "names": self.names(parser)})
        parser.error = lambda message: self.finish({"refused": message})
        try:
            method(*arguments, **options)
        except BaseException as refusal:
            self.finish({"refused": _last_line(refusal)})
        return self.finish({"accepted": True})

    def finish(self, content: dict[str, typing.Any]) -> typing.NoReturn:
        """Write the result and end at once: no thread, exit handler or `except` of the script runs after it."""
        stand_ins = sorted(self.missing.names) if self.missing else []
        imported = {"stand_ins": stand_ins, "files": self.files(), "packages": self.packages()}
        if os.getpid() == self.pid:  # not a fork of the script, which goes on beside it
            self.result.write_text(json.dumps({**content, **imported}), encoding="utf-8")
        os._exit(0)

    def names(self, parser: typing.Any) -> dict[str, list[str]]:
        """Return the keys of upstream's registries, of the modules that were imported; the others are unknown."""
        found = {}
        for flag, (module, name) in REGISTRIES.items():
            registry = getattr(sys.modules.get(module), name, None)
            if isinstance(registry, dict) and all(isinstance(key, str) for key in registry):
                found[flag] = list(registry)
        if build := getattr(sys.modules.get("open_instruct.ground_truth_utils"), "build_all_verifiers", None):
            defaults = types.SimpleNamespace(**{action.dest: action.default for action in parser._actions})
            with contextlib.suppress(Exception):
                found["verifiers"] = sorted(build(defaults, defaults))
        return found

    def files(self) -> dict[str, str]:
        """Return {path: git blob id} of the files of `root` that were imported."""
        files = {}
        for module in list(sys.modules.values()):
            path = Path(getattr(module, "__file__", None) or "/")
            if self.root and path.suffix == ".py" and path.is_relative_to(self.root):
                files[path.relative_to(self.root).as_posix()] = _blob_id(path)
        if self.root:
            files[self.entry] = _blob_id(self.root / self.entry)
        return dict(sorted(files.items()))

    def packages(self) -> dict[str, str]:
        """Return {distribution: version} of what was imported from packages; the version of a stand-in is ''."""
        sys.path[:] = _SEARCH_PATH  # setuptools adds packages of its own, which are not installed
        owners = importlib.metadata.packages_distributions()
        imported = {name.partition(".")[0] for name in list(sys.modules)}
        missing = self.missing.names if self.missing else set()
        found = {name: importlib.metadata.version(name) for top in imported - missing for name in owners.get(top, ())}
        return dict(sorted(found.items())) | dict.fromkeys(sorted(missing), "")


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def _blob_id(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def main(result: str, entry: str, root: str | None = None) -> None:
    sys.path[:] = _SEARCH_PATH  # without this program's own folder
    request = json.loads(sys.stdin.read() or "{}")
    if request.get("placeholders"):
        sys.path.insert(0, request["placeholders"])
        patches = importlib.import_module("launch.worker.patches.olmo_core")
        sys.path[:] = _SEARCH_PATH
        sys.meta_path.append(patches.PlaceholderFinder(patches.find_missing()))
    capture = _Capture(Path(result), entry, Path(root).resolve() if root else None, request.get("argv"))
    try:
        capture.run()
        error = "it ended before it parsed its arguments"
    except BaseException as failure:
        traceback.print_exc()
        error = _last_line(failure)
    capture.finish({"error": error})


if __name__ == "__main__":
    main(*sys.argv[1:])
