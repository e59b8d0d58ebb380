package loss

import "testing"

// The witness is a znode, and another program may write to it.
func FuzzUnmarshalSet(f *testing.F) {
	var s set
	for i := range s {
		s[i] = "a"
	}
	good, err := s.marshal(Owner{Prefix: "idem", Server: "redis:6379/0"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"version":1,"shards":{}}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, of, err := unmarshalSet(data)
		if err != nil {
			return
		}
		again, err := s.marshal(of)
		if err != nil {
			t.Fatal(err)
		}
		if twice, still, err := unmarshalSet(again); err != nil || *twice != *s || still != of {
			t.Errorf("%q became %q, %v", data, again, err)
		}
	})
}
