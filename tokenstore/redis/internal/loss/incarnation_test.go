package loss

import (
	"strings"
	"testing"
)

func TestLineage(t *testing.T) {
	t.Parallel()
	first := successor("")
	second := successor(first)
	third := successor(second)
	for name, tt := range map[string]struct {
		have, want string
		foreign    bool
		overtaken  bool
	}{
		"the expected one":                        {second, second, false, false},
		"none":                                    {"", second, false, false},
		"an acceptance of this loss":              {third, second, false, false},
		"another acceptance of this loss":         {successor(second), second, false, false},
		"the one before":                          {first, second, true, false},
		"another acceptance of the loss before":   {successor(first), second, true, true},
		"an acceptance of a later loss":           {successor(third), second, true, false},
		"another store's":                         {successor(""), second, true, false},
		"another store's, where none is expected": {successor(""), "", true, false},
	} {
		if got := foreign(tt.have, tt.want); got != tt.foreign {
			t.Errorf("foreign(%q, %q), %s = %v, want %v", tt.have, tt.want, name, got, tt.foreign)
		}
		if got := overtaken(tt.have, tt.want); got != tt.overtaken {
			t.Errorf("overtaken(%q, %q), %s = %v, want %v", tt.have, tt.want, name, got, tt.overtaken)
		}
	}
	if strings.Count(third, lineage) != 1 {
		t.Errorf("successor(%q) = %q, want one predecessor", second, third)
	}
}

func TestSetRefusesOtherDocuments(t *testing.T) {
	t.Parallel()
	var s set
	for i := range s {
		s[i] = successor("")
	}
	of := Owner{Prefix: "idem", Server: "redis:6379/0"}
	data, err := s.marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	if got, whose, err := unmarshalSet(data); err != nil || *got != s || whose != of {
		t.Errorf("unmarshalSet(marshal()) = %v, %v, want what was marshalled", got, err)
	}
	later := strings.Replace(string(data), `"version":1`, `"version":2`, 1)
	wider := strings.Replace(string(data), `{"00":`, `{"other":"x","00":`, 1)
	s[7] = ""
	gap, _ := s.marshal(of)
	for _, data := range []string{"", "{}", `{"version":1,"shards":{"00":"x"}}`, "null", string(gap), later, wider} {
		if _, _, err := unmarshalSet([]byte(data)); err == nil {
			t.Errorf("unmarshalSet(%q) = <nil>, want an error", data)
		}
	}
}
