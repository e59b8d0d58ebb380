package crashzookeeper

import (
	"encoding/binary"
	"testing"
)

// frame is a request: its length, xid, operation, and a body that begins with a path.
func frame(op int32, before []byte, path string) []byte {
	b := binary.BigEndian.AppendUint32(nil, 0)
	b = binary.BigEndian.AppendUint32(b, 7)
	b = binary.BigEndian.AppendUint32(b, uint32(op))
	b = append(b, before...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(path)))
	return append(b, path...)
}

func TestRequestsAreNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		frame []byte
		want  string
	}{
		{frame(1, nil, "/lock/3f2/a9"), "create /lock"},
		{frame(4, nil, "/idem"), "getData /idem"},
		{frame(14, []byte{0, 0, 0, 2, 0, 0xff, 0xff, 0xff, 0xff}, "/lock/3f2"), "multi delete /lock"},
		{frame(11, nil, ""), ""}, // ping
		{[]byte{0, 0, 0, 1}, ""},
		{frame(1, nil, "")[:12], "create"},
	} {
		if got, xid := nameOf(c.frame); got != c.want || got != "" && xid != 7 {
			t.Errorf("%x is named %q with xid %d, want %q", c.frame, got, xid, c.want)
		}
	}
}
