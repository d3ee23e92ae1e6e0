# What is known about the server. Descriptions of built-in kinds are left out: the embedded server has none.
kubectl version
kubectl cluster-info
kubectl api-versions
kubectl api-resources
kubectl api-resources --namespaced=false -o name
kubectl api-resources -o wide
kubectl api-resources --categories=all
kubectl api-resources --verbs=get --sort-by=name
kubectl auth can-i get pods
kubectl auth can-i '*' '*' --all-namespaces
kubectl auth can-i --list
kubectl auth whoami
kubectl auth whoami -o jsonpath='{.status.userInfo.groups}'
kubectl auth reconcile -f role.yaml
kubectl explain pods | grep -P '^ +\w+\t<|^ +enum: |^[A-Z]+: '
kubectl explain pods.spec | grep -P '^ +\w+\t<|^ +enum: |^[A-Z]+: '
kubectl explain pod.spec.containers.ports | grep -P '^ +\w+\t<|^ +enum: |^[A-Z]+: '
kubectl explain deployments.spec.strategy --recursive | grep -P '^ +\w+\t<|^ +enum: |^[A-Z]+: '
kubectl explain deployment.spec.nothing
kubectl explain hpa --api-version=autoscaling/v1 | grep -P '^ +\w+\t<|^ +enum: |^[A-Z]+: '
kubectl explain crd.spec.versions | grep -P '^ +\w+\t<|^ +enum: |^[A-Z]+: '
kubectl explain services.spec.ports --output=plaintext-openapiv2 | grep -P '^ +\w+\t<|^ +enum: |^[A-Z]+: '
kubectl get --raw /version
kubectl get --raw /healthz
kubectl get --raw /readyz
kubectl get --raw /livez/ping
kubectl get --raw /api
kubectl get --raw /apis/apps
kubectl get --raw /apis/apps/v1
kubectl get --raw /apis/autoscaling
kubectl get --raw /apis/none
kubectl get --raw /apis/apps/v2
kubectl top pods
kubectl config view --minify -o jsonpath='{.contexts[0].context.namespace}'
kubectl get namespaces --watch-only --request-timeout=1s
kubectl get namespace default --watch --output-watch-events --request-timeout=2s
kubectl get namespace default -o json --watch --output-watch-events --request-timeout=2s
kubectl get namespace default --server-print=false
kubectl get namespaces default kube-system -o yaml
kubectl cluster-info dump --namespaces=none --output-directory=dumped
kubectl certificate approve none
kubectl drain none
kubectl convert -f config.yaml
