# Making, reading and changing objects.
kubectl create namespace play
kubectl config set-context --current --namespace=play
kubectl config current-context
UNTIL default ; kubectl get serviceaccounts
UNTIL kube-root-ca.crt ; kubectl get configmaps
kubectl get pods
kubectl get configmaps,secrets -l app=none
kubectl create configmap one --from-literal=a=1 --from-literal=b=2
kubectl create configmap two --from-file=edit.sh
kubectl create configmap one --from-literal=a=1
kubectl create configmap dry --from-literal=a=1 --dry-run=server -o yaml
kubectl create configmap dry --from-literal=a=1 --dry-run=client -o json
kubectl create secret generic hidden --from-literal=password=swordfish
kubectl create secret docker-registry registry --docker-server=example.com --docker-username=u --docker-password=p
kubectl create serviceaccount robot
kubectl create role reader --verb=get,list,watch --resource=pods,deployments.apps
kubectl create rolebinding readers --role=reader --serviceaccount=play:robot --user=ann --group=people
kubectl create clusterrole all-reader --verb=get --resource=nodes
kubectl create clusterrolebinding all-readers --clusterrole=all-reader --group=people
kubectl create quota limited --hard=cpu=1,memory=1Gi,limits.cpu=2
kubectl create priorityclass high --value=1000 --description=first
kubectl create poddisruptionbudget steady --selector=app=web --min-available=1
kubectl create ingress edge --rule=shop.example/*=web:80,tls=cert
kubectl create service clusterip inner --tcp=80:8080
kubectl create service externalname outer --external-name=example.com
kubectl create token robot
kubectl create -f bad-name.yaml
kubectl create -f unknown-kind.yaml
kubectl get serviceaccounts robot -o yaml
kubectl get configmap one
kubectl get configmap one -o wide
kubectl get configmap one -o yaml
kubectl get configmap one -o json
kubectl get configmap one -o name
kubectl get configmap one -o jsonpath='{.data.a}{"\n"}'
kubectl get configmap one -o go-template='{{.metadata.name}}'
kubectl get configmap one -o custom-columns=NAME:.metadata.name,A:.data.a
kubectl get configmap one --show-managed-fields -o yaml
kubectl get configmap none
kubectl get configmap none --ignore-not-found
kubectl get nothings
kubectl get configmaps one two --no-headers
kubectl get configmaps --sort-by=.metadata.name
kubectl get configmaps --field-selector=metadata.name=two
kubectl get configmaps --field-selector=spec.nothing=two
kubectl get configmaps --show-labels
kubectl get configmaps --chunk-size=1
kubectl get secrets,serviceaccounts,roles,rolebindings,quota,pdb,ingress,services
kubectl get rolebindings -o wide
kubectl get clusterrole all-reader
kubectl get clusterrolebinding all-readers -o wide
kubectl get priorityclass high
kubectl get ingress edge -o yaml
kubectl get services -o wide
kubectl get namespaces
kubectl get namespace play -o yaml
kubectl get namespaces --show-kind
kubectl get configmaps -A --field-selector=metadata.name=one
kubectl get --raw /api/v1/namespaces/play/configmaps/one
kubectl get --raw /nothing
kubectl label configmap one tier=front
kubectl label configmap one tier=back
kubectl label configmap one tier=back --overwrite
kubectl label configmap one 'tier=not valid'
kubectl get configmaps -l tier=back
kubectl get configmaps -l 'tier in (back, front),!absent'
kubectl get configmaps -L tier
kubectl label configmap one tier-
kubectl annotate configmap one note='a text'
kubectl annotate configmap one note-
kubectl patch configmap one -p '{"data":{"c":"3"}}'
kubectl patch configmap one --type=merge -p '{"data":{"c":null}}'
kubectl patch configmap one --type=json -p '[{"op":"add","path":"/data/d","value":"4"}]'
kubectl patch configmap one --type=json -p '[{"op":"remove","path":"/data/nothing"}]'
kubectl patch configmap one --type=json -p '[{"op":"test","path":"/data/d","value":"5"}]'
kubectl patch configmap one -p '{"data":{"d":4}}'
kubectl patch configmap one -p '{"data":{"d":"4"}}'
kubectl edit configmap one
kubectl get configmap one -o jsonpath='{.data}'
kubectl describe configmap one
kubectl describe namespace play
kubectl describe secret hidden
kubectl describe serviceaccount robot
kubectl describe role reader
kubectl describe rolebinding readers
kubectl describe quota limited
kubectl describe service inner
kubectl describe ingress edge
kubectl describe poddisruptionbudget steady
kubectl describe configmap none
kubectl replace -f replaced.yaml
kubectl replace -f missing.yaml
kubectl get configmap two -o jsonpath='{.data}'
kubectl delete configmap one two
kubectl delete configmap one
kubectl delete configmap one --ignore-not-found
kubectl delete secrets -l app=none
kubectl delete secret hidden registry --wait=false
kubectl delete role,rolebinding --all
kubectl delete clusterrole/all-reader clusterrolebinding/all-readers priorityclass/high
kubectl delete service inner outer --dry-run=server
kubectl delete service inner outer
