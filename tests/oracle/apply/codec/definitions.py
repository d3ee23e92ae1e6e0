"""Writes down the definitions in Kubernetes' OpenAPI documents, one a line, without their descriptions.

    SPECS=$(go env GOMODCACHE)/k8s.io/kubernetes@v1.35.4/api/openapi-spec/v3
    python3 definitions.py $SPECS > ../../../../crates/apiserver/src/openapi/definitions.json
"""
import json, os, sys

RESOURCES = os.path.join(os.path.dirname(__file__), "../../../../crates/apiserver/src/kinds/resources.json")

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
    name = f"apis__{group}__{version}" if group else f"api__{version}"
    with open(os.path.join(sys.argv[1], name + "_openapi.json")) as document:
        definitions.update(stripped(json.load(document)["components"]["schemas"]))
lines = [f"{json.dumps(name)}:{json.dumps(definitions[name], separators=(',', ':'), sort_keys=True)}"
         for name in sorted(definitions)]
print("{\n" + ",\n".join(lines) + "\n}")
