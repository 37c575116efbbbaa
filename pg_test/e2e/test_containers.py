"""What packaging/ has for Kubernetes and for compose, checked as far as this machine can without either."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, Server, once, wait_until

pytestmark = once
CNPG, COMPOSE, DOCKERFILE = ROOT / "packaging/cnpg", ROOT / "packaging/compose.yaml", ROOT / "packaging/oci/Dockerfile"
LOADER = "github.com/compose-spec/compose-go/v2@v2.16.2"  # by which docker compose reads its file
OPERATOR = "github.com/cloudnative-pg/cloudnative-pg@v1.29.0"


def manifest(name):
    return yaml.safe_load((CNPG / name).read_text())


def strict(schema):
    """Returns the schema with unknown fields refused, as the API server does in strict decoding."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(part) for key, part in schema.items()}
    if isinstance(closed.get("properties"), dict) and not closed.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


@pytest.fixture(scope="module")
def definitions(tmp_path_factory):
    """Gives the operator's own definitions, from its module at Go's proxy."""
    if not shutil.which("go"):
        pytest.skip("Go is not there, by which CloudNativePG's definitions come")
    command = ["go", "mod", "download", "-json", OPERATOR]
    done = subprocess.run(command, cwd=tmp_path_factory.mktemp("go"), capture_output=True, text=True, timeout=200)
    if done.returncode:
        pytest.skip(f"{OPERATOR} cannot be had: {done.stdout[-300:]}{done.stderr[-300:]}")
    return Path(json.loads(done.stdout)["Dir"]) / "config/crd/bases"


@pytest.mark.parametrize("name", ["cluster", "database"])
def test_the_manifests_fit_the_definitions(definitions, name):
    jsonschema = pytest.importorskip("jsonschema", reason="pg_test/setup has not installed pg_test/requirements.txt")
    crd = yaml.safe_load((definitions / f"postgresql.cnpg.io_{name}s.yaml").read_text())["spec"]
    document = manifest(f"{name}.yaml")
    (version,) = (each for each in crd["versions"] if f"{crd['group']}/{each['name']}" == document["apiVersion"])
    assert document["kind"] == crd["names"]["kind"]
    check = jsonschema.Draft7Validator(strict(version["schema"]["openAPIV3Schema"]))
    assert [error.message for error in check.iter_errors(document)] == []
    document["spec"]["unheard_of"] = 1
    assert [error.message for error in check.iter_errors(document)] != []


def test_the_manifests_fit_each_other_and_the_layer():
    cluster, database = manifest("cluster.yaml"), manifest("database.yaml")["spec"]
    assert database["cluster"]["name"] == cluster["metadata"]["name"]
    ((extension,), (mounted,)) = database["extensions"], cluster["spec"]["postgresql"]["extensions"]
    assert f'\nversion = "{extension["version"]}"\n' in (ROOT / "Cargo.toml").read_text()
    major = re.search(r":(\d+)-", cluster["spec"]["imageName"])[1]
    assert mounted["image"]["reference"].endswith(f":{major}-{extension['version']}")
    assert f"\nARG PG_MAJOR={major}\n" in DOCKERFILE.read_text()
    for path in mounted["extension_control_path"] + mounted["dynamic_library_path"]:
        assert f"\nCOPY --from=build /layer/{path}/ /{path}/\n" in DOCKERFILE.read_text()


def test_the_lines_of_the_readme_name_the_image(tmp_path):
    """They run here as a reader pastes them, with an engine and a cluster that only write down what they get."""
    (block,) = (block for block in re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S) if "kubectl" in block)
    reference = manifest("cluster.yaml")["spec"]["postgresql"]["extensions"][0]["image"]["reference"]
    image = "localhost:5000/leases:18-1"
    assert block.count(reference) == 1
    for name, script in {"docker": 'echo "$*" >>called', "kubectl": "cat >applied"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", block.replace(reference, image)], cwd=ROOT, env=env, check=True)
    build, push = (tmp_path / "called").read_text().splitlines()
    assert build == f"build -f {DOCKERFILE.relative_to(ROOT)} --target extension -t {image} ."
    assert push == f"push {image}"
    cluster, database = yaml.safe_load_all((tmp_path / "applied").read_text())
    assert cluster["spec"]["postgresql"]["extensions"][0]["image"] == {"reference": image}
    assert database == manifest("database.yaml")


def test_the_image_of_your_own_is_like_ours():
    """The page shows the lines of the server's stage with their values."""
    (shown,) = re.findall(r"^```dockerfile\n(.*?)^```", (ROOT / "docs/packaging.md").read_text(), re.M | re.S)
    ours = DOCKERFILE.read_text().partition(" AS server\nARG PG_MAJOR\n")[2]
    ours = ours.replace("${PG_MAJOR}", "18").replace("--from=extension", "--from=eskit_layer")
    assert [line for line in shown.splitlines() if line[0] != "#"] == ["FROM postgres:18"] + [line for line in ours.splitlines() if line[0] != "#"]


def test_no_layer_is_made_for_a_server_that_cannot_find_it():
    done = subprocess.run([ROOT / "packaging/oci/build", "17"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("oci: PostgreSQL 17 finds no layer") and "make deb PG=17" in done.stderr


@pytest.fixture
def server():
    """Gives a server with the parameters of the Cluster."""
    parameters = manifest("cluster.yaml")["spec"]["postgresql"]["parameters"]
    server = Server("e2e-containers", *(f"{name} = '{value}'" for name, value in parameters.items()))
    yield server
    server.stop()


def here(service, server):
    """Returns the command and the environment of a service of the compose file, with the paths and the server of this machine."""
    command, environment = service["entrypoint"], dict(service["environment"], PGPASSWORD=os.environ["PGPASSWORD"])
    for source, target, _ in (volume.split(":") for volume in service.get("volumes", [])):
        command = [str(COMPOSE.parent / source) if word == target else word for word in command]
    command = [word.replace("--host=server", f"--host={server.host}") for word in command] + [f"--port={server.port}"] * ("psql" in command)
    if url := environment.get("DATABASE_URL"):
        url = url.replace("//server/", f"//127.0.0.1:{server.port}/").replace("=example", f"={os.environ['PGPASSWORD']}")
        environment["DATABASE_URL"] = url
    return command, os.environ | environment


def test_the_consumers_of_compose_apply_each_event_once(server):
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    (schema,) = services["server"]["volumes"]
    server.query((COMPOSE.parent / schema.split(":")[0]).read_text())
    command, environment = here(services["consumer"], server)
    running = [subprocess.Popen(command, env=environment) for _ in range(services["consumer"]["deploy"]["replicas"])]
    try:
        owners = "SELECT count(DISTINCT owner), count(*) FROM eskit_lease.group_partitions WHERE state = 'owned'"
        wait_until(lambda: server.query(owners) == [(2, 12)], pause=0.1)
        command, environment = here(services["producer"], server)
        subprocess.run(command, env=environment, check=True)
        wait_until(lambda: server.query("SELECT count(DISTINCT position) FROM ledger") == [(2000,)], timeout=120, pause=0.1)
    finally:
        for process in running:
            process.terminate()
        ended = [process.wait(60) for process in running]
    assert ended == [0, 0]
    assert server.query("SELECT count(*), count(DISTINCT consumer) FROM ledger") == [(2000, 2)]


def test_compose_reads_the_file():
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    assert (COMPOSE.parent / services["server"]["build"]["context"] / services["server"]["build"]["dockerfile"]).samefile(DOCKERFILE)
    for volume in (volume for service in services.values() for volume in service.get("volumes", [])):
        assert (COMPOSE.parent / volume.split(":")[0]).is_file()
    if shutil.which("docker") and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        command = ["docker", "compose", "-f", COMPOSE, "config", "--quiet"]
    elif shutil.which("go") and subprocess.run(["go", "mod", "download", LOADER], cwd="/", capture_output=True).returncode == 0:
        command = ["go", "run", LOADER.replace("@", "/cmd@"), COMPOSE]
    else:
        pytest.skip("neither docker compose is there, nor its loader at Go's proxy")
    done = subprocess.run(command, cwd=COMPOSE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
