"""A temporary copy of the project in which seeds are applied: a run that is killed leaves no fault
in the checkout.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.paths import ROOT
from tests.seeds.catalogue import Fault

_WHERE = "import launch; print(launch.__file__)"
# the process itself, and one that it starts elsewhere without its environment
_IMPORTED = f"""
import subprocess, sys
{_WHERE}
sys.stdout.flush()
subprocess.run([sys.executable, "-c", {_WHERE!r}], cwd="/", env={{}}, check=True)
"""
# modification times, each its own second: bytecode caches compare seconds
_edits = itertools.count(1_000_000_000)


class Sandbox:
    """A copy of the files that git tracks or would add, with an environment whose `launch` is the
    copy's.

    The environment is a folder of its own with this interpreter and, behind the copy, this
    environment's packages: processes that start `sys.executable` import the copy too, whatever
    their folder and variables are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._copy_files()
        self._make_environment()

    @property
    def python(self) -> Path:
        return self.folder / ".venv" / "bin" / "python"

    def _copy_files(self) -> None:
        clone = [
            "git",
            "clone",
            "--quiet",
            "--shared",
            "--no-checkout",
            str(ROOT),
            str(self.folder),
        ]
        subprocess.run(clone, check=True)
        subprocess.run(["git", "reset", "--quiet"], cwd=self.folder, check=True)
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for name in filter(None, listed.split("\0")):
            source, target = ROOT / name, self.folder / name
            if source.is_dir() and not source.is_symlink():  # a submodule
                target.mkdir(parents=True, exist_ok=True)
            elif source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)

    def _make_environment(self) -> None:
        real, packages = Path(sys.prefix), Path(sysconfig.get_path("purelib"))
        own = self.folder / ".venv"
        (own / "bin").mkdir(parents=True)
        shutil.copy2(real / "pyvenv.cfg", own / "pyvenv.cfg")
        for program in (real / "bin").iterdir():
            target = own / "bin" / program.name
            if program.is_symlink():
                target.symlink_to(program.readlink())
            elif program.is_file():
                with program.open("rb") as file:
                    is_script = file.read(2) == b"#!"
                if is_script:
                    target.write_bytes(
                        program.read_bytes().replace(os.fsencode(real), os.fsencode(own))
                    )
                    target.chmod(0o755)
                else:
                    target.symlink_to(program)
        folder = own / packages.relative_to(real)
        folder.mkdir(parents=True)
        (folder / "sandbox.pth").write_text(
            f"{self.folder}\nimport site; site.addsitedir({str(packages)!r})\n"
        )

    def environ(self) -> dict[str, str]:
        """Return the environment of the tests: this process's, without what leads back to the
        checkout.
        """
        environ = {
            key: os.environ[key] for key in os.environ if not key.startswith(("PYTHON", "PYTEST"))
        }
        checkout = ROOT / "external" / "open-instruct"
        if not environ.get("OPEN_INSTRUCT_DIR") and (checkout / "open_instruct").is_dir():
            environ["OPEN_INSTRUCT_DIR"] = str(checkout)
        environ.setdefault("OMP_NUM_THREADS", "1")
        path = f"{self.python.parent}{os.pathsep}{environ.get('PATH', '')}"
        return {**environ, "HF_HUB_OFFLINE": "1", "PATH": path}

    def check(self) -> None:
        """Check that the copy is what is imported. Raises RuntimeError."""
        command = [str(self.python), "-c", _IMPORTED]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environ(),
            capture_output=True,
            text=True,
            check=False,
        )
        imported = done.stdout.split()
        if imported != [str(self.folder / "launch" / "__init__.py")] * 2:
            raise RuntimeError(
                f"the copy in {self.folder} is not what is imported: {imported or done.stderr}"
            )

    @contextmanager
    def apply(self, seed: Fault) -> Iterator[None]:
        """Put one fault into the copy, and take it out again."""
        path = self.folder / seed.file
        text = path.read_text(encoding="utf-8")
        self._write(path, seed.mutate(text))
        try:
            yield
        finally:
            self._write(path, text)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        moment = next(_edits)
        os.utime(path, (moment, moment))
