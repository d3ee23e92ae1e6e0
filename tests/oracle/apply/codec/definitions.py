"""Writes down the definitions in the OpenAPI documents of a real API server, one a line, without their descriptions.

    python3 definitions.py > ../../../../crates/apiserver/src/openapi/definitions.json
"""
import json, os, subprocess

RESOURCES = os.path.join(os.path.dirname(__file__), "../../../../crates/apiserver/src/kinds/resources.json")

def get(path):
    return json.loads(subprocess.check_output(["kubectl", "get", "--raw", path]))

def stripped(schema):
    """A schema without descriptions; a field may be called `description` too."""
    if isinstance(schema, list):
        return [stripped(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: {name: stripped(field) for name, field in value.items()} if key == "properties" else stripped(value)
            for key, value in schema.items() if key != "description"}

definitions = {}
with open(RESOURCES) as rows:
    versions = sorted({(row["group"], row["version"]) for row in json.load(rows)})
for group, version in versions:
    document = get(f"/openapi/v3/apis/{group}/{version}" if group else f"/openapi/v3/api/{version}")
    definitions.update(stripped(document["components"]["schemas"]))
lines = [f"{json.dumps(name)}:{json.dumps(definitions[name], separators=(',', ':'), sort_keys=True)}"
         for name in sorted(definitions)]
print("{\n" + ",\n".join(lines) + "\n}")
