package held

import "testing"

// Any client may write anything to a znode that the world may write.
func FuzzParseOwner(f *testing.F) {
	f.Add(Identity().Encode())
	f.Add([]byte("{}"))
	f.Add([]byte(`{"pid":1e99}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		o := ParseOwner(data)
		if o.Instance == "" && o.Same(o) {
			t.Errorf("%q: two owners without a name are the same", data)
		}
		if again := ParseOwner(o.Encode()); again != o {
			t.Errorf("%q: %+v became %+v", data, o, again)
		}
	})
}
