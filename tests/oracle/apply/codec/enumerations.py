"""Writes down the fields of built-in kinds whose values are enumerated, by their Go type, from the definitions.

    python3 enumerations.py > ../../../../crates/apiserver/src/kinds/enumerations.json
"""
import json, os

DEFINITIONS = os.path.join(os.path.dirname(__file__), "../../../../crates/apiserver/src/openapi/definitions.json")
# Feature gates that are off by default: the API server refuses these values.
GATED = {("v1.Toleration", "operator"): {"Gt", "Lt"}}
# Kinds whose own checks name the whole struct.
CHECKED = {"v1.DeploymentStrategy", "v1.StatefulSetUpdateStrategy"}
# What the API server names in its messages, in this order, where the definitions differ.
NAMED = {
    ("v1.Container", "terminationMessagePolicy"): ["File", "FallbackToLogsOnError"],
    ("v1.DaemonSetUpdateStrategy", "type"): ["RollingUpdate", "OnDelete"],
    ("v1.EphemeralContainer", "terminationMessagePolicy"): ["File", "FallbackToLogsOnError"],
    ("v1.JobSpec", "completionMode"): ["NonIndexed", "Indexed"],
    ("v1.MutatingWebhook", "sideEffects"): ["None", "NoneOnDryRun"],
    ("v1.NetworkPolicyPort", "protocol"): ["TCP", "UDP", "SCTP"],
    ("v1.NetworkPolicySpec", "policyTypes"): ["Ingress", "Egress"],
    ("v1.PodSpec", "dnsPolicy"): ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    ("v1.PodSpec", "restartPolicy"): ["Always", "OnFailure", "Never"],
    ("v1.PriorityClass", "preemptionPolicy"): ["PreemptLowerPriority", "Never"],
    ("v1.StorageClass", "reclaimPolicy"): ["Delete", "Retain"],
    ("v1.Taint", "effect"): ["NoSchedule", "PreferNoSchedule", "NoExecute"],
    ("v1.Toleration", "effect"): ["NoSchedule", "PreferNoSchedule", "NoExecute"],
    ("v1.ValidatingWebhook", "sideEffects"): ["None", "NoneOnDryRun"],
}

table = {}
with open(DEFINITIONS) as definitions:
    for name, definition in json.load(definitions).items():
        go = ".".join(name.split(".")[-2:])
        # The status is written by controllers and not checked; this group is not served.
        if go.endswith("Status") or ".resource." in name or ".apiextensions." in name or go in CHECKED:
            continue
        for field, schema in definition.get("properties", {}).items():
            allowed = schema.get("enum") or schema.get("items", {}).get("enum")
            if allowed:
                # An empty value is an absent one, except for the type of a path of the host.
                left = [value for value in allowed
                        if (value or field == "type") and value not in GATED.get((go, field), ())]
                table.setdefault(go, {})[field] = NAMED.get((go, field), left)
lines = [f"{json.dumps(name)}:{json.dumps(table[name], separators=(',', ':'), sort_keys=True)}" for name in sorted(table)]
print("{\n" + ",\n".join(lines) + "\n}")
