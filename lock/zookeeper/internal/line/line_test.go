package line

import (
	"strings"
	"testing"
)

const unique = "0123456789abcdef01234567"

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		role string // "" if the name is foreign
		seq  int32
	}{
		{"read-" + unique + "05-0000000007", "read", 7},
		{"e-" + unique + "05-2147483647", "e", 2147483647},
		{"e-" + unique + "05--2147483648", "e", -2147483648},
		{"e-" + unique + "05--000000007", "e", -7},
		{"", "", 0},
		{"-" + unique + "05-0000000007", "", 0},
		{"e-" + unique[1:] + "05-0000000007", "", 0},
		{"e-" + unique + "050-0000000007", "", 0},
		{"e-" + unique + "05-", "", 0},
		{"e-" + unique + "80-0000000007", "", 0},
		{"e-" + unique + "x5-0000000007", "", 0},
		{"e-" + unique + "05-000000007", "", 0},
		{"e-" + unique + "05-2147483648", "", 0},
		{"e-" + unique + "05-00000000x7", "", 0},
		{"_c_8c2ae1b4-0f0e-4b4d-9c8e-1d6f5a3b2c10-lock-0000000007", "", 0}, // Apache Curator's
		{"lock-0000000007", "", 0},
	} {
		p, ok := Parse(tt.name)
		if ok != (tt.role != "") || ok && (p.Name != tt.name || p.Role != tt.role || p.Number != 5 || p.Seq != tt.seq || p.Unique() != unique) {
			t.Errorf("Parse(%q) = %+v, %v, want role %q and number %d", tt.name, p, ok, tt.role, tt.seq)
		}
	}
}

func TestSort(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ names, want string }{
		{"", ""},
		{"0000000002 foreign 0000000001", "0000000001 0000000002"},
		{"-2147483648 2147483647 -2147483647", "2147483647 -2147483648 -2147483647"}, // the numbers wrap
	} {
		var names, got []string
		for n := range strings.FieldsSeq(tt.names) {
			names = append(names, "e-"+unique+"00-"+n)
		}
		for _, p := range Sort(names) {
			got = append(got, strings.TrimPrefix(p.Name, "e-"+unique+"00-"))
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("Sort(%q) = %q, want %q", tt.names, s, tt.want)
		}
	}
}

// Only other applications give two znodes one number. Every client has to see them in one order.
func TestSortOfEqualNumbers(t *testing.T) {
	t.Parallel()
	names := []string{"b-" + unique + "00-0000000001", "a-" + unique + "00-0000000001"}
	if got := Sort(names); got[0].Role != "a" || got[1].Role != "b" {
		t.Errorf("Sort(%q) = %+v, want them by their names", names, got)
	}
}

func TestUniqueNamesAreParsed(t *testing.T) {
	t.Parallel()
	a, b := Unique(), Unique()
	if p, ok := Parse(Numbered(Prefix("read", a), 127) + "0000000001"); !ok || p.Number != 127 || p.Unique() != a || a == b {
		t.Errorf("Parse() of a name with %q = %+v, %v; the next is %q", a, p, ok, b)
	}
}
