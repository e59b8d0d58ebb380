package idemgrpc

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/idemkeeper/idemkeeper/idem"
	idemkeeperv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/proto/idemkeeper/v1"
)

// method is how a server treats one of its methods.
type method struct {
	name     string
	policy   *idem.Policy                  // nil for a method without protection
	keyField protoreflect.Name             // "" if the key is in the metadata
	desc     protoreflect.MethodDescriptor // nil without generated code
	exempt   bool                          // ignores keys
	optional bool                          // takes calls without a key
	chosen   bool                          // has a policy of its own
	refuse   bool                          // has no policy, and needs one
}

func (m *method) route() string {
	if m.policy != nil {
		return m.policy.Name
	}
	return idem.Policy{}.ForRoute(m.name).Name
}

// method returns how a method is treated.
func (o *options) method(name string) *method {
	m := &method{name: name, desc: findMethod(name), exempt: o.isExempt(name)}
	if field := protoreflect.Name(o.KeyField); m.desc == nil || isKeyField(m.desc.Input().Fields().ByName(field)) {
		m.keyField = field
	}
	policy, ok := o.policies[name]
	m.chosen = ok
	switch {
	case m.exempt || !ok && readOnly(m.desc):
		return m
	case !ok && (o.fallback == nil || m.desc != nil && m.desc.IsStreamingClient()):
		m.refuse = o.RefuseUnknown
		return m
	case !ok:
		policy = *o.fallback
	}
	policy = policy.ForRoute(name)
	m.policy, m.optional = &policy, names(o.OptionalKey, name)
	return m
}

// names reports whether a list has a method, or all methods of its service.
func names(list []string, method string) bool {
	service, _ := splitMethod(method)
	return slices.Contains(list, method) || slices.Contains(list, "/"+service+"/*")
}

// validateMethods checks the options for methods, and completes their policies.
func (o *options) validateMethods() (err error) {
	if o.fallback != nil {
		p, err := o.fallback.WithDefaults()
		if err != nil {
			return err
		}
		o.fallback = &p
	}
	fields := o.fallback != nil // its methods are not known yet
	for _, name := range slices.Sorted(maps.Keys(o.policies)) {
		if o.policies[name], err = o.validPolicy(name); err != nil {
			return fmt.Errorf("method %q: %w", name, err)
		}
		fields = fields || o.method(name).keyField != ""
	}
	if o.KeyField != "" && !fields {
		return fmt.Errorf("no request of a protected method has a string field %q", o.KeyField)
	}
	for _, name := range o.Exempt {
		if service, _ := splitMethod(name); service == "" {
			return fmt.Errorf("exempt method %q is neither /package.Service/Method nor /package.Service/*", name)
		}
	}
	return o.validateOptional()
}

// validateOptional checks the names of methods whose key is optional.
func (o *options) validateOptional() error {
	for _, name := range o.OptionalKey {
		service, short := splitMethod(name)
		p := o.fallback // the methods of a service without a policy of their own
		if short != "*" {
			p = o.method(name).policy
		}
		switch {
		case service == "":
			return fmt.Errorf("method %q with an optional key is neither /package.Service/Method nor /package.Service/*", name)
		case p == nil && short != "*":
			return fmt.Errorf("method %q has an optional key and is not protected", name)
		case p != nil && p.IssuedTokens:
			return fmt.Errorf("method %q: %w", name, errOptionalToken)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.policies)) {
		if o.policies[name].IssuedTokens && names(o.OptionalKey, name) {
			return fmt.Errorf("method %q: %w", name, errOptionalToken)
		}
	}
	return nil
}

var errOptionalToken = errors.New("the key is optional on a method for issued tokens: nothing would have to be redeemed")

// fit refuses policies that require more than the engine gives.
func (o *options) fit(e *idem.Engine) (err error) {
	for _, name := range slices.Sorted(maps.Keys(o.policies)) {
		p := o.policies[name].ForRoute(name)
		if names(o.OptionalKey, name) {
			p = p.KeyOptional()
		}
		if o.policies[name], err = e.Fit(p); err != nil {
			return fmt.Errorf("method %q: %w", name, err)
		}
	}
	if o.fallback != nil {
		p := *o.fallback
		if len(o.OptionalKey) > 0 { // some of its methods may be among them
			p = p.KeyOptional()
		}
		*o.fallback, err = e.Fit(p)
	}
	return err
}

// validPolicy checks whether a method can have its policy, and completes the policy.
func (o *options) validPolicy(name string) (idem.Policy, error) {
	p, m := o.policies[name], o.method(name)
	service, _ := splitMethod(name)
	switch {
	case service == "":
		return p, errors.New("want /package.Service/Method")
	case m.exempt:
		return p, errors.New("is exempt and has a policy")
	case m.desc == nil:
		return p, errors.New("no generated code in this binary describes it; a policy without a Name protects such methods")
	case m.desc != nil && m.desc.IsStreamingClient():
		return p, errors.New("streams requests, and cannot be protected")
	}
	return p.WithDefaults()
}

// isExempt reports whether a method ignores keys. The status service does, because it only
// asks about a key. The services of gRPC itself do, because tools send their metadata to
// all services.
func (o *options) isExempt(name string) bool {
	service, _ := splitMethod(name)
	_, chosen := o.policies[name]
	return service == idemkeeperv1.Idempotency_ServiceDesc.ServiceName || isOfGRPC(service) && !chosen ||
		names(o.Exempt, name)
}

// findMethod looks in the registry of generated code, and returns nil for an unknown
// method.
func findMethod(name string) protoreflect.MethodDescriptor {
	service, short := splitMethod(name)
	d, _ := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + short))
	m, _ := d.(protoreflect.MethodDescriptor)
	return m
}

// readOnly reports whether a method is declared to have no side effects.
func readOnly(d protoreflect.MethodDescriptor) bool {
	if d == nil {
		return false
	}
	o, _ := d.Options().(*descriptorpb.MethodOptions)
	return o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
}

// hasEffects is false for a method that is declared to have no side effects.
func hasEffects(method string) bool {
	service, _ := splitMethod(method)
	return !isOfGRPC(service) && !readOnly(findMethod(method))
}

// isOfGRPC reports whether a service is one of gRPC itself. They are listed one by one, because
// an application may have a package grpc of its own.
func isOfGRPC(service string) bool {
	switch service {
	case "grpc.health.v1.Health",
		"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
		"grpc.channelz.v1.Channelz",
		"grpc.lb.v1.LoadBalancer", "grpc.lookup.v1.RouteLookupService", "grpc.gcp.HandshakerService",
		"grpc.go.profiling.v1alpha.Profiling":
		return true
	}
	return false
}

// splitMethod takes "/package.Service/Method" apart. It returns "" for any other form.
func splitMethod(name string) (service, short string) {
	rest, ok := strings.CutPrefix(name, "/")
	service, short, _ = strings.Cut(rest, "/")
	if !ok || short == "" || strings.ContainsAny(short, "/.") {
		return "", ""
	}
	return service, short
}

func isKeyField(fd protoreflect.FieldDescriptor) bool {
	return fd != nil && fd.Kind() == protoreflect.StringKind && fd.Cardinality() != protoreflect.Repeated
}
