package idemgrpc

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/idemkeeper/idemkeeper/idem"
	idemkeeperv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/proto/idemkeeper/v1"
)

// method is a method and how it is treated.
type method struct {
	name     string
	policy   *idem.Policy                  // nil: not protected
	keyField protoreflect.Name             // "": the key is in the metadata
	desc     protoreflect.MethodDescriptor // nil: no generated code describes it
	exempt   bool                          // ignores keys
	refuse   bool                          // has no policy, and needs one
}

func (m *method) route() string {
	if m.policy != nil {
		return m.policy.Name
	}
	return idem.Policy{}.ForRoute(m.name).Name
}

func (m *method) protect(p idem.Policy) {
	p = p.ForRoute(m.name)
	m.policy = &p
}

// methods knows how a server treats its methods.
type methods struct {
	options  *options
	fallback *idem.Policy
	named    map[string]*method // those with a policy of their own
}

// init checks the wiring.
func (s *methods) init(o *options) error {
	s.options, s.named = o, map[string]*method{}
	if o.fallback != nil {
		p, err := o.fallback.WithDefaults()
		if err != nil {
			return err
		}
		s.fallback = &p
	}
	for _, name := range slices.Sorted(maps.Keys(o.policies)) {
		m, err := s.protected(name, o.policies[name])
		if err != nil {
			return fmt.Errorf("method %q: %w", name, err)
		}
		s.named[name] = m
	}
	for _, name := range slices.Sorted(maps.Keys(o.keyFields)) {
		if name == "" {
			continue
		}
		m := s.of(name)
		if m.policy == nil {
			return fmt.Errorf("method %q: has a key field and no policy", name)
		}
		if m.keyField == "" {
			return fmt.Errorf("method %q: request has no string field %q", name, o.keyFields[name])
		}
	}
	for _, name := range o.exempt {
		if _, _, ok := splitMethod(name); !ok {
			return fmt.Errorf("exempt method %q is neither /package.Service/Method nor /package.Service/*", name)
		}
	}
	return nil
}

// protected makes a method with a policy of its own.
func (s *methods) protected(name string, p idem.Policy) (*method, error) {
	if _, _, ok := splitMethod(name); !ok {
		return nil, errors.New("want /package.Service/Method")
	}
	m := s.describe(name)
	switch {
	case m.exempt:
		return nil, errors.New("is exempt and has a policy")
	case m.desc == nil && !s.options.anyMethod:
		return nil, errors.New("no generated code in this binary describes it; see WithUndescribedMethods")
	case m.desc != nil && m.desc.IsStreamingClient():
		return nil, errors.New("streams requests, and cannot be protected")
	}
	p, err := p.WithDefaults()
	if err != nil {
		return nil, err
	}
	m.protect(p)
	return m, nil
}

// of returns how a method is treated.
func (s *methods) of(name string) *method {
	if m := s.named[name]; m != nil {
		return m
	}
	m := s.describe(name)
	readOnly := m.desc != nil && readOnly(m.desc)
	switch {
	case m.exempt || readOnly:
	case s.fallback != nil && (m.desc == nil || !m.desc.IsStreamingClient()):
		m.protect(*s.fallback)
	default:
		m.refuse = s.options.unknown == RefuseUnknown
	}
	return m
}

// describe fills in everything except the policy.
func (s *methods) describe(name string) *method {
	m := &method{name: name, exempt: s.exempt(name), desc: findMethod(name)}
	if m.desc == nil {
		m.keyField = protoreflect.Name(s.options.keyFields[name])
		return m
	}
	field, ok := s.options.keyFields[name]
	if !ok {
		field = s.options.keyFields[""]
	}
	if fd := m.desc.Input().Fields().ByName(protoreflect.Name(field)); isKeyField(fd) {
		m.keyField = fd.Name()
	}
	return m
}

// exempt reports whether a method ignores keys. The status service does, because it only
// asks about a key. The services of gRPC itself do, because tools send their metadata to
// all services.
func (s *methods) exempt(name string) bool {
	service, _, _ := splitMethod(name)
	if service == idemkeeperv1.Idempotency_ServiceDesc.ServiceName {
		return true
	}
	_, chosen := s.options.policies[name]
	return strings.HasPrefix(service, "grpc.") && !chosen ||
		slices.Contains(s.options.exempt, name) || slices.Contains(s.options.exempt, "/"+service+"/*")
}

// findMethod looks in the registry of generated code, and returns nil for an unknown
// method.
func findMethod(name string) protoreflect.MethodDescriptor {
	service, short, ok := splitMethod(name)
	if !ok {
		return nil
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil
	}
	sd, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil
	}
	return sd.Methods().ByName(protoreflect.Name(short))
}

// readOnly reports whether a method is declared to have no side effects.
func readOnly(d protoreflect.MethodDescriptor) bool {
	o, ok := d.Options().(*descriptorpb.MethodOptions)
	return ok && o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
}

// splitMethod takes "/package.Service/Method" apart.
func splitMethod(name string) (service, short string, ok bool) {
	rest, ok := strings.CutPrefix(name, "/")
	if !ok {
		return "", "", false
	}
	service, short, ok = strings.Cut(rest, "/")
	return service, short, ok && service != "" && short != "" && !strings.Contains(short, "/")
}

func isKeyField(fd protoreflect.FieldDescriptor) bool {
	return fd != nil && fd.Kind() == protoreflect.StringKind && fd.Cardinality() != protoreflect.Repeated
}

// newMessage makes an empty message of a type, nil if this binary does not know it.
func newMessage(name protoreflect.FullName) proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		return nil
	}
	return t.New().Interface()
}
