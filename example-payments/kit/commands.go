package kit

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
)

// AnswerFor writes the FILE of record resolve --applied for a payment, as the
// sample answers it over a transport.
func AnswerFor(t *testing.T, via Transport, p Payment) string {
	t.Helper()
	if via == Transports[0] {
		body, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return AnswerFile(t, map[string]any{"status": 201, "body": string(body),
			"headers": map[string][]string{"Content-Type": {"application/json"}, "Location": {"/v1/payments/" + p.ID}}})
	}
	at, err := time.Parse(time.RFC3339Nano, p.CreatedAt)
	if err != nil {
		t.Fatal(err)
	}
	message, err := proto.Marshal(&paymentsv1.Payment{Id: p.ID, From: p.From, To: p.To, Amount: p.Amount, Currency: p.Currency,
		Note: p.Note, Status: p.Status, CreatedAt: timestamppb.New(at)})
	if err != nil {
		t.Fatal(err)
	}
	return AnswerFile(t, map[string]any{"status": 0, "body_base64": base64.StdEncoding.EncodeToString(message)})
}

// AnswerFile writes the FILE of record resolve --applied, and returns its path.
func AnswerFile(t testing.TB, answer any) string {
	t.Helper()
	data, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "answer.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// RecordLine is what idemctl --json writes of a record, as far as the contract
// goes.
type RecordLine struct {
	KeyID   string `json:"key_id"`
	State   string
	Since   string
	Attempt int
}

// RecordLines reads what idemctl --json has printed of records.
func RecordLines(t *testing.T, out string) []RecordLine {
	t.Helper()
	var all []RecordLine
	for line := range strings.Lines(out) {
		var r RecordLine
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("idemctl printed %q: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

// FlushRedis empties Redis, as an operator may by mistake.
func (s *System) FlushRedis(t testing.TB) {
	t.Helper()
	if _, err := s.Redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
}

// OpenRecords lists the open records as an operator sees them.
func (s *System) OpenRecords(t *testing.T, args ...string) []RecordLine {
	t.Helper()
	out, code := s.OutputOf(append([]string{"--json", "record", "list"}, args...)...)
	if code != 0 {
		t.Fatalf("idemctl record list = %d %q", code, out)
	}
	return RecordLines(t, out)
}
