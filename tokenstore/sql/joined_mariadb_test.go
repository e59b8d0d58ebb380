package sqlstore

import "testing"

func TestCompoundHasItsArgumentsAsLiterals(t *testing.T) {
	t.Parallel()
	c := newCompound("INSERT INTO `a?b` VALUES (?, ?, ?, '? x')?")
	if got, want := c.with([]byte{0, '\'', 0xff}, int64(-7), []byte(nil), "sp", []byte{}), "INSERT INTO `a?b` VALUES (x'0027ff', -7, NULL, 'sp x')x''"; got != want {
		t.Errorf("with() = %s, want %s", got, want)
	}
}
