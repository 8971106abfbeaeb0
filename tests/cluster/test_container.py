"""The container: its recipe is linted, its build context is closed, its steps run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
sys.path.insert(0, str(ROOT / "scripts"))
from container_steps import CANNOT, Ignore, steps  # noqa: E402

STEPS = list(steps(ROOT / "Dockerfile"))


def test_the_dockerfile_is_clean_to_hadolint():
    done = subprocess.run(
        [BIN / "hadolint", ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_it_ends_as_another_user_than_root_with_the_doctor_as_health_check():
    last_user = [argument for instruction, argument in STEPS if instruction == "USER"][-1]
    assert int(last_user) >= 1000
    (health,) = [argument for instruction, argument in STEPS if instruction == "HEALTHCHECK"]
    assert '["layertracer", "doctor"]' in health


def test_it_builds_for_ampere_hopper_and_blackwell():
    environment = " ".join(argument for instruction, argument in STEPS if instruction == "ENV")
    assert 'TORCH_CUDA_ARCH_LIST="8.0;9.0;10.0"' in environment


def test_nothing_in_it_is_a_secret():
    words = re.compile(r"token|secret|password|credential|api_?key", re.IGNORECASE)
    assert not [step for step in STEPS if words.search(" ".join(step))]


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("layertracer/cli.py", False),
        ("csrc/bindings.cpp", False),
        ("requirements/container.txt", False),
        ("requirements/dev.in", True),
        (".git/config", True),
        (".env", True),
        ("demo/weights/model.safetensors", True),
        ("layertracer/_C.cpython-312-x86_64-linux-gnu.so", True),
        ("layertracer/trace/__pycache__/lens.cpython-312.pyc", True),
        ("layertracer.egg-info/PKG-INFO", True),
    ],
)
def test_the_build_context_holds_what_the_image_needs_and_nothing_else(path, ignored):
    assert Ignore.read(ROOT / ".dockerignore").ignores(path) is ignored


def test_what_it_installs_are_the_locked_versions_without_torch():
    def pins(name: str) -> set[str]:
        lines = (ROOT / "requirements" / name).read_text("utf-8").splitlines()
        return {line for line in lines if not line.startswith("#")}

    installed = pins("container.txt")
    assert installed <= pins("lock.txt")
    assert not [pin for pin in installed if re.match("torch|nvidia|triton|numpy", pin)]
    assert any(pin.startswith("megatron-core==0.19.") for pin in installed)


def run_steps(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [ROOT / "scripts" / "check_container.sh", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    if done.returncode == CANNOT:
        pytest.skip(done.stderr.strip())
    return done


def test_every_step_of_the_dockerfile_runs():
    before = Path("/opt/layertracer").exists()
    done = run_steps()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("--- RUN ") == sum(name == "RUN" for name, _ in STEPS)
    assert Path("/opt/layertracer").exists() is before  # nothing outside the view was touched


def test_a_failing_step_is_noticed(tmp_path):
    recipe = tmp_path / "Dockerfile"
    recipe.write_text("FROM scratch\nRUN test -d /data && true\n", "utf-8")
    done = run_steps("--dockerfile", str(recipe))
    assert done.returncode == 1 and "RUN ended with code 1" in done.stderr
