package messages_test

import (
	"encoding/json"
	"testing"

	"github.com/omnibus-runtime/omnibus/messages"
)

// TestRequestIDHasOneForm: JSON has the id in the form of logs and reports, and reads it again.
func TestRequestIDHasOneForm(t *testing.T) {
	type report struct {
		Request messages.RequestID `json:"request"`
	}
	const want = `{"request":"0000000400000012"}`
	b, err := json.Marshal(report{0x4_00000012})
	if string(b) != want || err != nil {
		t.Errorf("it is %s, %v, want %s", b, err, want)
	}
	for text, id := range map[string]messages.RequestID{want: 0x4_00000012, `{"request":"12"}`: 0x12} {
		var r report
		if err := json.Unmarshal([]byte(text), &r); err != nil || r.Request != id {
			t.Errorf("%s is read as %v, %v", text, r.Request, err)
		}
	}
	for _, text := range []string{`""`, `"-1"`, `"g"`, `"10000000000000000"`, `18`} {
		var id messages.RequestID
		if err := json.Unmarshal([]byte(text), &id); err == nil {
			t.Errorf("%s is read as %v", text, id)
		}
	}
}
