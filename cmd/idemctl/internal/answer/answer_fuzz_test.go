package answer

import (
	"testing"
)

// FILE of record resolve. What is accepted has a status and headers that can be sent.
func FuzzParseAnswer(f *testing.F) {
	f.Add([]byte(`{"status":201,"headers":{"Content-Type":["application/json"]},"body":"{}"}`))
	f.Add([]byte(`{"status":0,"body_base64":"AA==","message_type":"a.B"}`))
	f.Add([]byte(`{"status":1,"status":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		ans, err := parse(data)
		if (ans == nil) == (err == nil) {
			t.Fatalf("parse(%q) = %v, %v", data, ans, err)
		}
		if err == nil && ans.text != nil && ans.binary {
			t.Errorf("parse(%q) has two bodies", data)
		}
	})
}
