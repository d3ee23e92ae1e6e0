"""Writes down the resources of a real API server: `kubectl get --raw` of the discovery documents, one line each.

    python3 resources.py > ../../../../crates/apiserver/src/kinds/resources.json
"""
import json, subprocess

def get(path):
    return json.loads(subprocess.check_output(["kubectl", "get", "--raw", path]))

rows, groups = [], [("", "v1", "/api/v1", ["v1"])]
for group in get("/apis")["groups"]:
    for version in group["versions"]:
        groups.append((group["name"], version["version"], "/apis/" + version["groupVersion"],
                       [v["version"] for v in group["versions"]]))
for group, version, path, _ in groups:
    if version not in ("v1", "v2"):
        continue
    resources = get(path)["resources"]
    for r in resources:
        if "/" in r["name"]:
            continue
        subs = [s for s in resources if s["name"].startswith(r["name"] + "/")]
        row = {"group": group, "version": version, "plural": r["name"], "singular": r.get("singularName", ""),
               "kind": r["kind"], "namespaced": r["namespaced"], "verbs": r["verbs"]}
        for key, name in (("shortNames", "short"), ("categories", "categories"), ("storageVersionHash", "hash")):
            if r.get(key):
                row[name] = r[key]
        if subs:
            row["subresources"] = [{"name": s["name"].split("/", 1)[1], "kind": s["kind"], "verbs": s["verbs"],
                                    **({"group": s["group"]} if "group" in s else {}),
                                    **({"version": s["version"]} if "version" in s else {})} for s in subs]
        rows.append(row)
print("[\n" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "\n]")
