"""Executor of the steps of GitHub workflows and composite actions, as far as the recipes of this repository need it: `run` with its
shell, environment and condition, local actions, stand-ins for others, the files behind GITHUB_ENV, GITHUB_PATH and GITHUB_OUTPUT,
and expressions of contexts, literals, comparisons, `&&`, `||`, `hashFiles` and `failure` (no step is run after one that failed)."""
import os
import re
import subprocess
import tempfile

import yaml

SHELLS = {
    None: ["bash", "-e"],
    "bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail"],
    "sh": ["sh", "-e"],
}
STEP_KEYS = {"name", "id", "if", "run", "shell", "working-directory", "env", "uses", "with"}


class StepFailed(Exception):
    """A step whose script failed; its argument is what the script printed."""


def text(value):
    """Returns a value as GitHub inserts it into a text."""
    return {None: "", True: "true", False: "false"}.get(value, str(value)) if not isinstance(value, str) else value


class Job:
    """A job on a runner: workspace, temporary directory, and what earlier steps added to the environment."""

    def __init__(self, workspace, temporary, environment, actions=None):
        self.workspace, self.temporary, self.actions = workspace, temporary, actions or {}
        self.environment, self.path, self.printed = dict(environment), [], []
        self.github = {"workspace": workspace}
        os.makedirs(temporary, exist_ok=True)

    def evaluate(self, expression, contexts):
        """Returns the value of an expression without its `${{ }}`."""
        def lookup(match):
            word = match[0]
            if word[0] == "'" or re.fullmatch(r"[0-9]+|&&|\|\||==|!=|!|[(),]|hashFiles|failure|\s+", word):
                return {"&&": " and ", "||": " or ", "!": " not "}.get(word, word)
            if word in ("true", "false", "null"):
                return {"true": "True", "false": "False", "null": "None"}[word]
            value = contexts
            for name in word.split("."):
                value = value.get(name) if isinstance(value, dict) else None
            return repr("" if value is None else value)

        tokens = re.compile(r"'(?:[^']|'')*'|&&|\|\||==|!=|!|[(),]|[A-Za-z0-9_.-]+|\s+")
        if "".join(tokens.findall(expression)) != expression:
            raise ValueError(f"expression: {expression}")
        return eval(tokens.sub(lookup, expression), {"__builtins__": {}, "hashFiles": lambda *patterns: "0" * 64, "failure": lambda: False})

    def expand(self, value, contexts):
        """Returns a text with its expressions replaced."""
        return re.sub(r"\$\{\{\s*(.*?)\s*\}\}", lambda match: text(self.evaluate(match[1], contexts)), text(value))

    def run(self, steps, inputs=None, action_path=None, within=()):
        """Runs steps and returns the outputs of those with an ID. `within` precedes each shell, such as `unshare`."""
        contexts = {
            "inputs": inputs or {},
            "runner": {"os": "Linux", "arch": "X64", "temp": self.temporary},
            "github": {**self.github, "action_path": action_path or ""},
            "steps": {},
        }
        for step in steps:
            unknown = set(step) - STEP_KEYS
            if unknown:
                raise ValueError(f"keys of a step: {unknown}")
            condition = re.fullmatch(r"\s*(?:\$\{\{)?(.*?)(?:\}\})?\s*", str(step.get("if", "true")))[1].strip()
            if not self.evaluate(condition, contexts):
                continue
            if "uses" in step:
                given = {key: self.expand(value, contexts) for key, value in step.get("with", {}).items()}
                outputs = self.use(step["uses"], given, within)
            else:
                outputs = self.script(step, contexts, within, is_action=action_path is not None)
            if "id" in step:
                contexts["steps"][step["id"]] = {"outputs": outputs}
        return contexts["steps"]

    def use(self, name, given, within):
        """Runs an action: a directory of the workspace (`./…`), or a stand-in, a function from inputs to outputs."""
        if not name.startswith("./"):
            return self.actions[name](given) or {}
        path = os.path.normpath(os.path.join(self.workspace, name))
        action = yaml.safe_load(open(f"{path}/action.yml"))
        return self.action(action, path, given, within)

    def action(self, action, path, given, within=()):
        """Runs a composite action and returns its outputs."""
        if action["runs"]["using"] != "composite" or set(given) - set(action["inputs"]):
            raise ValueError(f"not a composite action, or inputs that it lacks: {given}")
        inputs = {name: given.get(name, text(spec.get("default"))) for name, spec in action["inputs"].items()}
        steps = self.run(action["runs"]["steps"], inputs, path, within)
        return {name: self.expand(spec["value"], {"steps": steps, "inputs": inputs}) for name, spec in action["outputs"].items()}

    def script(self, step, contexts, within=(), is_action=False):
        if is_action and "shell" not in step:
            raise ValueError("a step of a composite action needs a shell")
        files = {name: tempfile.mkstemp(dir=self.temporary)[1] for name in ("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT")}
        environment = {**self.environment, **files, "GITHUB_WORKSPACE": self.workspace, "RUNNER_TEMP": self.temporary,
                       "RUNNER_OS": "Linux", "GITHUB_ACTIONS": "true", "CI": "true"}
        environment["PATH"] = ":".join(self.path[::-1] + [self.environment["PATH"]])
        environment.update({name: self.expand(value, contexts) for name, value in step.get("env", {}).items()})
        script = tempfile.mkstemp(dir=self.temporary, suffix=".sh")[1]
        with open(script, "w") as file:
            file.write(self.expand(step["run"], contexts))
        directory = os.path.join(self.workspace, self.expand(step.get("working-directory", "."), contexts))
        done = subprocess.run([*within, *SHELLS[step.get("shell")], script], cwd=directory, env=environment, text=True, timeout=1200,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.printed.append(done.stdout)
        if done.returncode:
            raise StepFailed(f"{step.get('name', step['run'])}: exit status {done.returncode}\n{done.stdout}")
        pairs = lambda name: dict(line.split("=", 1) for line in open(files[name]).read().splitlines())
        self.environment.update(pairs("GITHUB_ENV"))
        self.path += open(files["GITHUB_PATH"]).read().splitlines()
        return pairs("GITHUB_OUTPUT")
