package main

import (
	"context"
	"fmt"
	"sort"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	applyapps "k8s.io/client-go/applyconfigurations/apps/v1"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// story is what users do while the controller runs.
func (u *user) story(ctx context.Context) error {
	for _, chapter := range []func(context.Context) error{
		u.stacksComeAndChange, u.refusals, u.selectors, u.subresources, u.patches, u.watches, u.stacksGo,
	} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	return nil
}

// note writes an outcome down.
func (u *user) note(step string, err error, values ...any) {
	line := step + ":"
	if err != nil {
		line += fmt.Sprintf(" %s: %v", apierrors.ReasonForError(err), err)
	} else {
		for _, value := range values {
			line += fmt.Sprintf(" %v", value)
		}
	}
	u.steps = append(u.steps, line)
}

func (u *user) stack(name string) *Stack {
	return &Stack{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func (u *user) stacksComeAndChange(ctx context.Context) error {
	for name, config := range map[string]map[string]string{"a": {"a": "1"}, "b": {"a": "2", "b": "3"}, "c": nil} {
		stack := u.stack(name)
		stack.Labels = map[string]string{"tier": map[bool]string{true: "back", false: "front"}[name == "b"]}
		stack.Spec = StackSpec{Replicas: 2, Config: config, SecretName: "input"}
		if err := u.Create(ctx, stack); err != nil {
			return err
		}
		if name == "a" {
			u.note("created", nil, stack.Spec.Image, stack.Status.ObservedGeneration, stack.Generation)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		if err := u.ready(ctx, name); err != nil {
			return err
		}
	}
	// The scale of a custom resource, as an autoscaler writes it.
	scale := &autoscalingv1.Scale{}
	err := u.SubResource("scale").Get(ctx, u.stack("a"), scale)
	u.note("scale", err, scale.Spec.Replicas, scale.Status.Replicas, scale.Status.Selector)
	scale.Spec.Replicas = 4
	u.note("scale up", u.SubResource("scale").Update(ctx, u.stack("a"), client.WithSubResourceBody(scale)), scale.Spec.Replicas)
	if err := u.ready(ctx, "a"); err != nil {
		return err
	}
	// A change of the Secret reaches the stacks that depend on it.
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "input"}}
	if err := u.Patch(ctx, secret, client.RawPatch(types.MergePatchType, []byte(`{"stringData":{"version":"2"}}`))); err != nil {
		return err
	}
	for _, name := range []string{"a", "b", "c"} {
		if err := until(ctx, "the Secret reaches "+name, func() (bool, error) {
			stack := u.stack(name)
			err := u.Get(ctx, client.ObjectKeyFromObject(stack), stack)
			return stack.Status.SecretVersion == "2", err
		}); err != nil {
			return err
		}
	}
	// Drift is repaired: by the watch of what the controller owns.
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a"}}
	if err := u.Patch(ctx, config, client.RawPatch(types.MergePatchType, []byte(`{"data":{"a":"drift"}}`))); err != nil {
		return err
	}
	return until(ctx, "drift is repaired", func() (bool, error) {
		err := u.Get(ctx, client.ObjectKeyFromObject(config), config)
		return config.Data["a"] == "1", err
	})
}

func (u *user) refusals(ctx context.Context) error {
	bad := u.stack("bad")
	bad.Spec.Config = map[string]string{"forbidden": "x"}
	u.note("a rule refuses", u.Create(ctx, bad))
	u.note("exists", u.Create(ctx, u.stack("a")))
	u.note("not found", u.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "nobody"}, &corev1.ConfigMap{}))
	stale := u.stack("a")
	if err := u.Get(ctx, client.ObjectKeyFromObject(stale), stale); err != nil {
		return err
	}
	stale.ResourceVersion = "1"
	u.note("conflict", u.Update(ctx, stale))
	u.note("conflict of a status", u.Status().Update(ctx, stale))
	u.note("a wrong UID", u.Delete(ctx, u.stack("a"), client.Preconditions{UID: ptr(types.UID("00000000-0000-0000-0000-000000000009"))}))
	var service corev1.Service
	if err := u.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "a"}, &service); err != nil {
		return err
	}
	service.Spec.Ports = nil
	service.Spec.SessionAffinity = "Sometimes"
	u.note("an invalid Service", u.Update(ctx, &service, client.DryRunAll))
	dry := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "dry"}}
	u.note("dry run", u.Create(ctx, dry, client.DryRunAll), dry.Name)
	u.note("nothing stored", u.Get(ctx, client.ObjectKeyFromObject(dry), dry))
	// A Deployment in protobuf that is not there: options of the group apps.
	missing := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nobody"}}
	u.note("delete nothing", u.Delete(ctx, missing, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	claimed := applyapps.Deployment("a", namespace).WithSpec(applyapps.DeploymentSpec().WithReplicas(9))
	u.note("an apply conflicts", u.Apply(ctx, claimed, client.FieldOwner("other")))
	_, err := u.typed.CoreV1().ConfigMaps("nowhere").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{FieldValidation: "Strict"})
	u.note("no such namespace", err)
	return nil
}

func names[T any](items []T, name func(*T) string) string {
	var all []string
	for at := range items {
		all = append(all, name(&items[at]))
	}
	sort.Strings(all)
	return strings.Join(all, ",")
}

func (u *user) selectors(ctx context.Context) error {
	in := client.InNamespace(namespace)
	var stacks StackList
	nameOf := func(stack *Stack) string { return stack.Name }
	u.note("by label", u.List(ctx, &stacks, in, client.MatchingLabels{"tier": "front"}), names(stacks.Items, nameOf))
	u.note("by expression", u.List(ctx, &stacks, in, &client.ListOptions{Raw: &metav1.ListOptions{LabelSelector: "tier notin (front),tier"}}), names(stacks.Items, nameOf))
	u.note("by field", u.List(ctx, &stacks, in, client.MatchingFields{"spec.image": "example.org/app:1"}), names(stacks.Items, nameOf))
	u.note("by no such field", u.List(ctx, &stacks, in, client.MatchingFields{"spec.replicas": "1"}))
	partial := &metav1.PartialObjectMetadataList{}
	partial.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("DeploymentList"))
	u.note("metadata", u.List(ctx, partial, in), names(partial.Items, func(one *metav1.PartialObjectMetadata) string { return one.Name }))
	loose := &unstructured.UnstructuredList{}
	loose.SetGroupVersionKind(stackVersion.WithKind("StackList"))
	u.note("unstructured", u.List(ctx, loose, in), names(loose.Items, func(one *unstructured.Unstructured) string { return one.GetName() }))
	var paged []string
	options := metav1.ListOptions{Limit: 2, LabelSelector: stackLabel}
	for {
		page, err := u.typed.CoreV1().Services(namespace).List(ctx, options)
		if err != nil {
			return err
		}
		paged = append(paged, names(page.Items, func(one *corev1.Service) string { return one.Name }))
		if options.Continue = page.Continue; page.Continue == "" {
			break
		}
	}
	u.note("pages", nil, paged)
	events, err := u.typed.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "regarding.kind=Stack,regarding.name=a,reason=Available,reportingController=stacks"})
	if err != nil {
		return err
	}
	u.note("events of a", nil, len(events.Items) > 0)
	secrets, err := u.typed.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type!=Opaque"})
	if err != nil {
		return err
	}
	u.note("other secrets", nil, len(secrets.Items))
	return nil
}

func (u *user) subresources(ctx context.Context) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a"}}
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"https://kubernetes.default.svc"}, ExpirationSeconds: ptr(int64(900))}}
	err := u.SubResource("token").Create(ctx, account, token)
	u.note("token", err, strings.Count(token.Status.Token, "."), token.Spec.Audiences)
	scale, err := u.typed.AppsV1().Deployments(namespace).GetScale(ctx, "a", metav1.GetOptions{})
	if err != nil {
		return err
	}
	u.note("scale of a Deployment", nil, scale.Spec.Replicas, scale.Status.Selector)
	scale.Spec.Replicas = 1
	_, err = u.typed.AppsV1().Deployments(namespace).UpdateScale(ctx, "c", scale, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
	u.note("scale of another", err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p", Labels: map[string]string{"app": "p"}}, Spec: corev1.PodSpec{
		NodeName: "typed",
		Containers: []corev1.Container{{
			Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
		}},
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
	}}
	u.note("pod", u.Create(ctx, pod), pod.Status.QOSClass, len(pod.Spec.Tolerations))
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIP, pod.Status.PodIPs = "10.2.0.5", []corev1.PodIP{{IP: "10.2.0.5"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: "typed.dev/ready", Status: corev1.ConditionTrue}}
	u.note("pod status", u.Status().Update(ctx, pod), pod.Status.PodIPs)
	var pods corev1.PodList
	u.note("pods of the node", u.List(ctx, &pods, client.MatchingFields{"spec.nodeName": "typed", "status.phase": "Running"}), len(pods.Items))
	eviction := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}}
	u.note("evict", u.SubResource("eviction").Create(ctx, pod, eviction))
	u.note("evicted", u.Get(ctx, client.ObjectKeyFromObject(pod), pod))
	u.note("evict nothing", u.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{}))
	return nil
}

func (u *user) patches(ctx context.Context) error {
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "patched"}, Data: map[string]string{"a": "1"}, BinaryData: map[string][]byte{"b": {0, 255}}}
	u.note("create", u.Create(ctx, config), len(config.BinaryData["b"]))
	u.note("json patch", u.Patch(ctx, config, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"test","path":"/data/a","value":"1"},{"op":"add","path":"/data/c","value":"2"}]`))), config.Data)
	u.note("failed test", u.Patch(ctx, config, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"test","path":"/data/a","value":"9"}]`))))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "typed"}}
	if err := u.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
		return err
	}
	base := node.DeepCopy()
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "d", Effect: corev1.TaintEffectNoSchedule})
	node.Spec.Unschedulable = true
	u.note("strategic merge", u.Patch(ctx, node, client.StrategicMergeFrom(base)), len(node.Spec.Taints), node.Spec.Unschedulable)
	node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"a", "b"}, SizeBytes: 1 << 40}}
	u.note("node status", u.Status().Update(ctx, node), node.Status.Capacity.Cpu(), node.Status.Images)
	u.note("apply", u.Apply(ctx, applycore.ConfigMap("patched", namespace).WithData(map[string]string{"applied": "1"}), client.FieldOwner("applier")))
	u.note("apply again", u.Apply(ctx, applycore.ConfigMap("patched", namespace).WithLabels(map[string]string{"x": "y"}), client.FieldOwner("applier")))
	u.note("after it", u.Get(ctx, client.ObjectKeyFromObject(config), config), config.Data, config.Labels)
	return nil
}

// watches reads the events of a typed watch from a revision on, with its bookmarks left out.
func (u *user) watches(ctx context.Context) error {
	maps := u.typed.CoreV1().ConfigMaps(namespace)
	list, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	watch, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, FieldSelector: "metadata.name=watched", AllowWatchBookmarks: true})
	if err != nil {
		return err
	}
	defer watch.Stop()
	watched := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "watched"}, Data: map[string]string{"a": "1"}}
	created, err := maps.Create(ctx, watched, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	created.Data["a"] = "2"
	if _, err := maps.Update(ctx, created, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if err := maps.Delete(ctx, "watched", metav1.DeleteOptions{}); err != nil {
		return err
	}
	for seen := 0; seen < 3; {
		select {
		case event, open := <-watch.ResultChan():
			if !open {
				return fmt.Errorf("the watch ended")
			}
			config, is := event.Object.(*corev1.ConfigMap)
			if is && config.Name == "watched" {
				u.note("event", nil, event.Type, config.Data)
				seen++
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (u *user) stacksGo(ctx context.Context) error {
	u.note("delete", u.Delete(ctx, u.stack("b"), client.PropagationPolicy(metav1.DeletePropagationBackground)))
	if err := until(ctx, "stack b is gone", func() (bool, error) {
		err := u.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "b"}, &Stack{})
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}); err != nil {
		return err
	}
	// An update of the image reaches every part.
	stack := u.stack("c")
	if err := u.Patch(ctx, stack, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"image":"example.org/app:2"}}`))); err != nil {
		return err
	}
	if err := u.ready(ctx, "c"); err != nil {
		return err
	}
	// What was created before a stack went stays; what is labelled goes with a collection.
	u.note("delete all", u.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(namespace), client.MatchingLabels{"x": "y"}))
	// Both events of a stack have arrived, which are sent in the background.
	return until(ctx, "the events have arrived", func() (bool, error) {
		all, err := u.typed.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		found := map[string]bool{}
		for at := range all.Items {
			event := &all.Items[at]
			if event.Regarding.Kind == "Stack" {
				found[fmt.Sprintf("%s %s %v", event.Regarding.Name, event.Reason, event.Action != "")] = true
			}
		}
		for _, wanted := range []string{"a Available true", "a Available false", "b Available true", "c Available false", "b Finalized false"} {
			if !found[wanted] {
				return false, nil
			}
		}
		return true, nil
	})
}
