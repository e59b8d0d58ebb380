package crashpgx

import (
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

func TestStatementsAreNamed(t *testing.T) {
	t.Parallel()
	s := &session{prepared: map[string]string{}}
	write := func(want string, messages ...pgproto3.FrontendMessage) {
		t.Helper()
		var b []byte
		for _, m := range messages {
			var err error
			if b, err = m.Encode(b); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.nameOf(b); got != want {
			t.Errorf("%T is named %q, want %q", messages, got, want)
		}
	}
	write("", &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersionNumber, Parameters: map[string]string{"user": "u"}})
	write("BEGIN", &pgproto3.Query{String: "begin"})
	write("", &pgproto3.Parse{Name: "s1", Query: "INSERT INTO payments VALUES ($1)"}, &pgproto3.Describe{ObjectType: 'S', Name: "s1"}, &pgproto3.Sync{})
	write("INSERT INTO payments", &pgproto3.Bind{PreparedStatement: "s1"}, &pgproto3.Execute{}, &pgproto3.Sync{})
	write("INSERT INTO payments; COMMIT", &pgproto3.Bind{PreparedStatement: "s1"}, &pgproto3.Execute{},
		&pgproto3.Parse{Query: "commit"}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{})
	write("", &pgproto3.Terminate{})
}
