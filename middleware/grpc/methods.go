package idemgrpc

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/idemkeeper/idemkeeper/idem"
	idemkeeperv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/proto/idemkeeper/v1"
)

// method is a method and how it is treated.
type method struct {
	name      string
	operation string                         // for the fingerprint
	policy    *idem.Policy                   // nil: not protected
	keyField  protoreflect.Name              // "": the key is in the metadata
	desc      protoreflect.MethodDescriptor  // nil where no generated code describes it
	output    protoreflect.MessageDescriptor // of desc, or nil
	exempt    bool                           // runs whatever it carries
	refuse    bool                           // has no policy, and needs one
}

func (m *method) route() string {
	if m.policy != nil {
		return m.policy.Name
	}
	return recorded(m.name)
}

// recorded is how a name is kept with a record, in at most 255 bytes.
func recorded(name string) string { return name[:min(len(name), 255)] }

// methods knows the methods of a server: those that the options name from the
// start, the others from their first call.
type methods struct {
	options  *options
	fallback *idem.Policy
	named    map[string]*method
	met      sync.Map // string to *method, described ones only: names can come from clients
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
		if service, rest, ok := splitMethod(name); !ok || service == "" || rest == "" {
			return fmt.Errorf("exempt method %q is neither /package.Service/Method nor /package.Service/*", name)
		}
	}
	return nil
}

// protected makes a method that has a policy of its own.
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
	if m, ok := s.met.Load(name); ok {
		return m.(*method)
	}
	m := s.describe(name)
	switch {
	case m.exempt || m.desc != nil && (m.desc.IsStreamingClient() || readOnly(m.desc)):
	case s.fallback != nil:
		m.protect(*s.fallback)
	}
	m.refuse = m.policy == nil && !m.exempt && s.options.unknown == RefuseUnknown && (m.desc == nil || !readOnly(m.desc))
	if m.desc != nil {
		s.met.Store(name, m)
	}
	return m
}

// describe fills in everything but the policy.
func (s *methods) describe(name string) *method {
	m := &method{name: name, operation: "grpc " + name, exempt: s.exempt(name), desc: findMethod(name)}
	if m.desc == nil {
		m.keyField = protoreflect.Name(s.options.keyFields[name])
		return m
	}
	m.output = m.desc.Output()
	field, ok := s.options.keyFields[name]
	if !ok {
		field = s.options.keyFields[""]
	}
	if fd := m.desc.Input().Fields().ByName(protoreflect.Name(field)); isKeyField(fd) {
		m.keyField = fd.Name()
	}
	return m
}

func (m *method) protect(p idem.Policy) {
	p = p.ForRoute(m.name)
	m.policy = &p
}

func (s *methods) exempt(name string) bool {
	service, _, _ := splitMethod(name)
	own := strings.HasPrefix(service, "grpc.") // reflection, health, channelz: tools send their metadata to all
	if _, ok := s.options.policies[name]; ok {
		own = false
	}
	if service == idemkeeperv1.Idempotency_ServiceDesc.ServiceName { // its key is asked about, not used
		own = true
	}
	return own || slices.Contains(s.options.exempt, name) || slices.Contains(s.options.exempt, "/"+service+"/*")
}

// findMethod looks in what generated code has registered. It returns nil for a
// method that is not there.
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

// readOnly says that the method's author declared it to have no side effects.
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

// newMessage makes an empty message of a type, or nil where this binary does
// not know it.
func newMessage(name protoreflect.FullName) proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		return nil
	}
	return t.New().Interface()
}
