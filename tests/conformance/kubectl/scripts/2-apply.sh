# Applying, comparing and taking away.
kubectl create namespace applied
kubectl config set-context --current --namespace=applied
kubectl diff -f config.yaml
kubectl apply -f config.yaml
kubectl apply -f config.yaml
kubectl diff -f config.yaml
kubectl diff -f config-2.yaml
kubectl apply -f config-2.yaml --dry-run=server
kubectl apply -f config-2.yaml --dry-run=client
kubectl apply -f config-2.yaml
kubectl get configmap settings -o yaml
kubectl apply view-last-applied configmap settings
kubectl apply -f web.yaml
kubectl apply -f web.yaml
kubectl apply -f web-2.yaml
kubectl get deployment web -o jsonpath='{.spec.template.spec.containers[*].name} {.spec.template.spec.containers[0].ports}'
kubectl diff -f web.yaml | grep '^[-+]'
kubectl apply -f typo.yaml
kubectl apply -f typo.yaml --validate=warn
kubectl apply -f typo.yaml --validate=ignore
kubectl apply -f wrong-type.yaml
kubectl apply -f invalid.yaml
kubectl apply -f immutable.yaml
kubectl apply -k kustomized
kubectl get configmaps -l from=kustomize -o name
kubectl diff -k kustomized
kubectl delete -k kustomized
kubectl apply --server-side -f config.yaml
kubectl apply --server-side -f config.yaml --force-conflicts
kubectl apply --server-side --field-manager=other -f config-2.yaml
kubectl apply --server-side --field-manager=other -f config-2.yaml --force-conflicts
kubectl diff --server-side --field-manager=other -f config.yaml --force-conflicts
kubectl get configmap settings -o yaml --show-managed-fields
kubectl apply -f many.yaml
kubectl apply -f many-less.yaml --prune -l set=many
kubectl get configmaps -l set=many -o name
cat config.yaml | kubectl delete -f -
kubectl delete -f many.yaml
kubectl apply -f - < many.yaml
kubectl delete configmaps -l set=many
kubectl apply -f config.yaml -n nowhere
kubectl delete namespace applied
kubectl get namespace applied
