package main

import "testing"

// FILE of record resolve. What is accepted has a status and headers that can be sent.
func FuzzParseAnswer(f *testing.F) {
	f.Add([]byte(`{"status":201,"headers":{"Content-Type":["application/json"]},"body":"{}"}`))
	f.Add([]byte(`{"status":0,"body_base64":"AA==","message_type":"a.B"}`))
	f.Add([]byte(`{"status":1,"status":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		ans, err := parseAnswer(data)
		if (ans == nil) == (err == nil) {
			t.Fatalf("parseAnswer(%q) = %v, %v", data, ans, err)
		}
		if err == nil && ans.text != nil && ans.binary {
			t.Errorf("parseAnswer(%q) has two bodies", data)
		}
	})
}
