# Custom resources.
kubectl create namespace custom
kubectl config set-context --current --namespace=custom
kubectl get things
kubectl apply -f definition.yaml
kubectl wait --for=condition=Established definition/x --timeout=5s
kubectl wait --for=condition=Established crd/things.test.dev --timeout=30s
UNTIL things ; kubectl api-resources --api-group=test.dev
kubectl api-resources --api-group=test.dev -o wide
UNTIL No resources ; kubectl get things
kubectl get crd things.test.dev
kubectl apply -f thing.yaml
kubectl get things
kubectl get th
kubectl get thing a -o wide
kubectl get thing a -o yaml
kubectl get things.v1.test.dev a -o name
kubectl get things.test.dev
kubectl get tests
kubectl apply -f thing-typo.yaml
kubectl apply -f thing-invalid.yaml
kubectl apply -f thing-2.yaml
kubectl patch thing a --type=merge -p '{"spec":{"size":3}}'
kubectl patch thing a -p '{"spec":{"size":3}}'
kubectl patch thing a --type=merge --subresource=status -p '{"status":{"size":3,"conditions":[{"type":"Ready","status":"True"}]}}'
kubectl wait --for=condition=Ready thing/a --timeout=5s
kubectl wait --for=jsonpath='{.status.size}'=3 thing/a --timeout=5s
kubectl wait --for=create thing/a --timeout=5s
kubectl wait --for=condition=Stalled thing/a --timeout=1s
kubectl scale thing a --replicas=2
kubectl get thing a --subresource=scale
kubectl describe thing a
kubectl edit thing a
kubectl label thing a x=y
kubectl diff -f thing.yaml
UNTIL size ; kubectl explain things.spec
kubectl explain things.spec.list
kubectl explain things.spec --recursive
kubectl explain things.spec.nothing
kubectl apply --server-side -f thing.yaml --force-conflicts
kubectl get thing a -o yaml --show-managed-fields
kubectl replace -f thing.yaml
kubectl delete thing a
kubectl apply -f definition-2.yaml
UNTIL <none> ; kubectl get other
kubectl get others.v1beta1.test.dev x
kubectl delete crd things.test.dev others.test.dev
kubectl get things
kubectl delete namespace custom
