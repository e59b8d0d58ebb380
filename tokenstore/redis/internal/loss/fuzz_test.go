package loss

import "testing"

// The witness is a znode, and another program may write to it.
func FuzzUnmarshalSet(f *testing.F) {
	var s set
	for i := range s {
		s[i] = "a"
	}
	good, err := s.marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"version":1,"shards":{}}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := unmarshalSet(data)
		if err != nil {
			return
		}
		again, err := s.marshal()
		if err != nil {
			t.Fatal(err)
		}
		if twice, err := unmarshalSet(again); err != nil || *twice != *s {
			t.Errorf("%q became %q, %v", data, again, err)
		}
	})
}
