"""Executes the Dockerfile without a container engine, and tests the resulting image.

The steps are those of the Dockerfile itself; in place of its base images are trees that
debootstrap makes from the packages of the local Debian release, from the mirror of apt.
Needs root and debootstrap: `make image-check`.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

if __package__ is None:
    sys.path.insert(0, str(Path(__file__).parent.parent))
from scripts.recipe import Stage, Step, stages_of

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "image"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RUN_PACKAGES = "python3,python3-venv,ca-certificates"
BUILD_PACKAGES = ("gcc", "libc6-dev")
UNTIL_HEALTHY_SECONDS = 180  # the demo learns, which takes longer on a busy machine
UNTIL_STOPPED_SECONDS = 20

# Files of this machine with which a build reaches its mirrors; a container engine has its own.
NETWORK_FILES = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/pip.conf",
    "/etc/ssl/certs/ca-certificates.crt",
)
NETWORK_VARIABLES = re.compile(
    r"(?i)(https?|no|all)_proxy|PIP_(INDEX_URL|CERT|TRUSTED_HOST|DEFAULT_TIMEOUT)"
)


def main() -> None:
    """Builds and tests; exits with 1 and the reason if a check fails."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("image-check: needs root and debootstrap (apt-get install debootstrap).")
    if "--inside" not in sys.argv:  # the mounts disappear with this process
        again = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            sys.executable,
            __file__,
            "--inside",
        ]
        os.execvp(again[0], again)  # noqa: S606  # the same program, in a mount namespace
    began = time.monotonic()
    stages = stages_of((ROOT / "Dockerfile").read_text("utf-8"))
    trees = {stage.name: WORK / stage.name for stage in stages}
    try:
        for stage in stages:
            build(stage, trees, with_compiler=stage is not stages[-1])
        tries = try_out(stages[-1], trees[stages[-1].name])
    finally:
        unmount(WORK)
    for tree in trees.values():
        shutil.rmtree(tree)
    print(f"image-check: {tries} checks passed in {time.monotonic() - began:.0f} s")


# --- building


def build(stage: Stage, trees: Mapping[str, Path], *, with_compiler: bool) -> None:
    """Makes the tree of a stage from its base and its steps."""
    tree = trees[stage.name]
    unmount(tree)
    shutil.rmtree(tree, ignore_errors=True)
    say(f"stage {stage.name}, on a Debian tree instead of {stage.base}")
    run(["cp", "-a", "--reflink=auto", base(), tree])
    mount_kernel(tree)
    if with_compiler:
        mount("/etc/apt", tree / "etc/apt")
        bring_network(tree)
        run_in(tree, ["apt-get", "update", "-qq"])
        run_in(
            tree, ["apt-get", "install", "-qq", "--yes", "--no-install-recommends", *BUILD_PACKAGES]
        )
    for step in stage.steps:
        say(f"{step.word} {step.text[:90]}")
        (tree / step.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
        if step.word == "COPY":
            copy(step, tree, trees)
        else:
            environment = {**step.environment, **network_environment()}
            run_in(tree, ["/bin/sh", "-c", step.text], environment, step.workdir)
    (tree / stage.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)


def base() -> Path:
    """A small Debian tree with Python, kept for later runs."""
    codename = run(["sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME"]).strip()
    tree = WORK / f"base-{codename}"
    if not tree.exists():
        say("debootstrap: takes a minute, and only the first time")
        unfinished = WORK / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        include = f"--include={RUN_PACKAGES}"
        run(["debootstrap", "--variant=minbase", include, codename, unfinished, mirror(codename)])
        unfinished.rename(tree)
    return tree


def mirror(codename: str) -> str:
    """The mirror from which apt on this machine takes the packages of a release."""
    rows = run(["apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)"])
    for row in rows.splitlines():
        release, component, address = row.split(" ", 2)
        if (release, component) == (codename, "main"):
            return address
    sys.exit(f"image-check: apt has no mirror of {codename}; run apt-get update once.")


def copy(step: Step, tree: Path, trees: Mapping[str, Path]) -> None:
    """Executes a COPY from the context or from another stage into a tree."""
    *sources, target = shlex.split(step.text)
    origin = trees[step.flags["from"]] if "from" in step.flags else ROOT
    ignored = () if "from" in step.flags else ignored_names()
    target = target if target.startswith("/") else f"{step.workdir}/{target}"
    for source in sources:
        path = origin / source.lstrip("/")
        goal = tree / target.lstrip("/")
        if path.is_dir():
            ignore = shutil.ignore_patterns(*ignored)
            shutil.copytree(path, goal, symlinks=True, ignore=ignore, dirs_exist_ok=True)
        else:
            goal = goal / path.name if target.endswith("/") else goal
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, goal)


def ignored_names() -> list[str]:
    """The names that .dockerignore leaves out at any depth."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    return [line.removeprefix("**/") for line in lines if line.startswith("**/")]


# --- tests


def try_out(stage: Stage, tree: Path) -> int:
    """Runs the image as its user on its read-only tree; returns the number of passed checks."""
    run(["mount", "--bind", tree, tree])
    run(["mount", "-o", "remount,bind,ro", tree])
    mount_kernel(tree)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**stage.environment, "EVALUATOR_HTTP_PORT": port}

    def program(arguments: Sequence[str]) -> list[str]:
        return ["chroot", f"--userspec={stage.user}", str(tree), *arguments]

    def tried(arguments: Sequence[str]) -> tuple[int, str]:
        done = subprocess.run(
            program(arguments), env={"PATH": PATH, **environment},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    python = str(Path(stage.entrypoint[0]).with_name("python"))
    passed = 0
    for what, arguments, code, words in (
        ("its default command", [*stage.entrypoint, *stage.command], 0, "usage: evaluator"),
        (
            "its user",
            [python, "-c", "import os; print(os.getuid(), os.getgid())"],
            0,
            stage.user.replace(":", " "),
        ),
        (
            "a read-only tree",
            [python, "-c", "open('/var/lib/evaluator/x', 'w')"],
            1,
            "Read-only file system",
        ),
        ("no installer", [python, "-m", "pip"], 1, "No module named pip"),
        (
            "check without a broker",
            [*stage.entrypoint, "check", "--source=kafka://127.0.0.1:9"],
            3,
            "error",
        ),
        ("health without a worker", stage.health, 3, "is unreachable"),
    ):
        found, text = tried(arguments)
        good = found == code and words in text and (code == 1 or "Traceback" not in text)
        expect(good, what, f"exit code {found}:\n{text}")
        passed += 1

    with (WORK / "demo.txt").open("w+", encoding="utf-8") as output:
        demo = subprocess.Popen(
            program([*stage.entrypoint, "demo", "--keep"]),
            env={"PATH": PATH, **environment}, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            until = time.monotonic() + UNTIL_HEALTHY_SECONDS
            shown = ""
            ended = "The page remains"
            while ended not in shown and time.monotonic() < until and demo.poll() is None:
                time.sleep(0.2)
                shown = (WORK / "demo.txt").read_text("utf-8")
            expect("ndcg@10" in shown and ended in shown, "the whole demo", shown)
            found, text = tried(stage.health)
            expect(found == 0, "the health check of the running demo", text)
            demo.send_signal(signal.Signals[stage.stop_signal])
            code = demo.wait(UNTIL_STOPPED_SECONDS)
            expect(code == 0, f"a clean exit on {stage.stop_signal}", f"exit code {code}")
        finally:
            if demo.poll() is None:
                demo.kill()
                demo.wait()
    return passed + 3


def expect(good: bool, what: str, otherwise: str) -> None:
    """Prints a check; exits if it failed."""
    if not good:
        sys.exit(f"image-check: FAILED: {what}: {otherwise}")
    say(f"ok: {what}")


# --- the machine


def run(command: Sequence[str | Path], **options: object) -> str:
    """Output of a command; exits with its last lines if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options,
    )  # fmt: skip
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-30:])
        sys.exit(f"image-check: {shlex.join(map(str, command))} failed:\n{tail}")
    return done.stdout


def run_in(
    tree: Path,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    workdir: str = "/",
) -> None:
    """Runs a command as root in a tree."""
    inside = ["env", "--chdir", workdir, *command]
    variables = {
        "PATH": PATH,
        "HOME": "/",
        "DEBIAN_FRONTEND": "noninteractive",
        **(environment or {}),
    }
    run(["chroot", tree, *inside], env=variables)


def mount_kernel(tree: Path) -> None:
    """Mounts a /proc for the tree."""
    run(["mount", "-t", "proc", "proc", tree / "proc"])


def bring_network(tree: Path) -> None:
    """Mounts the mirror settings of this machine in the tree for the duration of the build."""
    for name in NETWORK_FILES:
        goal = tree / name.lstrip("/")
        if Path(name).exists():
            goal.parent.mkdir(parents=True, exist_ok=True)
            goal.touch()
            mount(name, goal)


def network_environment() -> dict[str, str]:
    """Variables with the settings for mirrors."""
    return {name: value for name, value in os.environ.items() if NETWORK_VARIABLES.fullmatch(name)}


def mount(source: str | Path, goal: Path) -> None:
    """Binds a file or folder to another place, read-only."""
    run(["mount", "--bind", "-o", "ro", source, goal])


def unmount(below: Path) -> None:
    """Unmounts everything at or below a folder, the last mount first."""
    lines = Path("/proc/mounts").read_text("utf-8").splitlines()
    points = [line.split(" ")[1].replace("\\040", " ") for line in lines]
    for point in reversed(points):
        if Path(point).is_relative_to(below):
            run(["umount", "--lazy", point])


def say(text: str) -> None:
    """Prints a line of progress."""
    print(f"image-check: {text}", flush=True)


if __name__ == "__main__":
    main()
