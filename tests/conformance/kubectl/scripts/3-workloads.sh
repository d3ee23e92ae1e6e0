# What runs, without nodes to run it on.
kubectl create namespace work
kubectl config set-context --current --namespace=work
kubectl create deployment web --image=nginx:1 --replicas=2 --port=80
UNTIL 2 ; kubectl get deployment web -o jsonpath='{.status.replicas}'
UNTIL MinimumReplicasUnavailable ; kubectl get deployment web -o jsonpath='{.status.conditions[*].reason}'
kubectl get deployments
kubectl get deployments -o wide
kubectl get deployment web -o yaml
kubectl describe deployment web
kubectl rollout status deployment/web --timeout=1s
kubectl rollout status deployment/web --watch=false
kubectl rollout history deployment/web
kubectl rollout pause deployment/web
kubectl rollout pause deployment/web
kubectl rollout resume deployment/web
kubectl scale deployment web --replicas=3
kubectl scale deployment web --replicas=3 --current-replicas=5
kubectl get --raw /apis/apps/v1/namespaces/work/deployments/web/scale
kubectl patch deployment web --subresource=status --type=merge -p '{"status":{"collisionCount":7}}'
kubectl patch deployment web --subresource=scale --type=merge -p '{"spec":{"replicas":1}}'
# Before the template changes there is one ReplicaSet. How many pods those of old templates keep, as the new one is
# never ready, depends on how many of the changes below one pass of the real controller sees.
UNTIL 1 ; kubectl get deployment web -o jsonpath='{.status.replicas}'
kubectl get deployment web --subresource=scale
kubectl get deployment web --subresource=status
kubectl set image deployment/web nginx=nginx:2
kubectl set image deployment/web none=nginx:2
kubectl set env deployment/web COLOUR=red
kubectl set env deployment/web --list
kubectl set resources deployment/web --limits=cpu=100m,memory=64Mi
kubectl set serviceaccount deployment/web default
kubectl get deployment web -o jsonpath='{.spec.template.spec.containers[0]}'
kubectl rollout restart deployment/web
kubectl expose deployment web --port=80 --target-port=8080 --name=front
kubectl get service front -o wide
kubectl get service front -o yaml
kubectl set selector service front app=other
kubectl autoscale deployment web --min=1 --max=4 --cpu=80%
kubectl get hpa
kubectl get hpa web -o yaml
kubectl get hpa.v1.autoscaling web -o jsonpath='{.spec}'
kubectl label deployment web tier=front
kubectl annotate deployment web kubernetes.io/change-cause=testing
kubectl get all
kubectl get replicasets
kubectl create job once --image=busybox:1 -- true
kubectl create cronjob often --image=busybox:1 --schedule='*/5 * * * *' -- true
kubectl create job by-hand --from=cronjob/often
UNTIL Running ; kubectl get jobs
kubectl get cronjobs
kubectl get cronjobs -o wide
kubectl describe cronjob often | sed '/^Events:/,$d'
kubectl run alone --image=nginx:1 --port=80 --env=A=b --labels=app=alone
UNTIL alone ; kubectl get pods -l app=alone
kubectl get pods -l app=alone -o wide
kubectl get pod alone -o yaml
kubectl describe pod alone
kubectl get pods --field-selector=status.phase=Pending -l app=alone -o name
kubectl get pods --field-selector=spec.nodeName=none
kubectl set image pod/alone alone=nginx:2
kubectl patch pod alone -p '{"spec":{"nodeName":"elsewhere"}}'
kubectl logs alone
kubectl exec alone -- true
kubectl cp alone:/a b
kubectl port-forward alone 8080:80
kubectl attach alone
kubectl delete pod alone --now
kubectl apply -f stateful.yaml
kubectl get statefulsets
kubectl get statefulsets -o wide
kubectl apply -f daemon.yaml
UNTIL <none> ; kubectl get daemonsets
kubectl get daemonsets -o wide
kubectl apply -f claim.yaml
UNTIL data ; kubectl get pvc
kubectl apply -f network.yaml
kubectl get networkpolicies
kubectl describe networkpolicy closed
kubectl apply -f node.yaml
kubectl get nodes
kubectl get nodes -o wide
kubectl cordon worker
kubectl uncordon worker
kubectl taint node worker dedicated=me:NoSchedule
kubectl taint node worker dedicated-
kubectl label node worker node-role.kubernetes.io/edge=
kubectl get nodes
kubectl delete node worker
kubectl apply -f event.yaml
kubectl events --for=deployment/web --types=Warning
kubectl get events --field-selector=reason=Tested -o wide
kubectl delete deployment web --cascade=orphan
kubectl delete job once --cascade=foreground
kubectl delete cronjob often
kubectl delete statefulset,daemonset,hpa,service --all
kubectl wait --for=delete job/once --timeout=10s
kubectl delete namespace work --wait=false
UNTIL NotFound ; kubectl get namespace work
