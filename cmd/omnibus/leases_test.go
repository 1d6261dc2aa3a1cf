package main

import (
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus/host"
)

// Views that a process keeps are no reason to say that none holds a payload.
func TestLeasesNameWhoKeepsViews(t *testing.T) {
	var out strings.Builder
	err := writeLeases(&out, []host.Holding{
		{PID: 7, Name: "caller", Together: "kept", Payloads: 600, Bytes: 600 * 100 << 10, Age: 3 * time.Second},
		{PID: 8, Name: "gone", Together: "left", Payloads: 2, Bytes: 2 << 10, Age: 2 * time.Second},
		{PID: 9, Name: "talk", Together: "alone", Payloads: 580, Bytes: 580 * 100 << 10},
	})
	if err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{
		"3s   7    caller   600 payloads finished, views kept",
		"2s   8    gone     2 payloads kept, connection over",
		"-    9    talk     580 payloads with memory of their own",
		"58.6 MiB", "2 KiB", "56.6 MiB",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not there:\n%s", want, text)
		}
	}
}

// A process that has not reported is named below the payloads, and is none.
func TestLeasesNameWhatIsUnreported(t *testing.T) {
	silent := host.Holding{PID: 4711, Name: "talker\n", Direct: true, Together: "unreported"}
	for want, all := range map[string][]host.Holding{
		"process 4711 (talker\\n) has not said what it has under way\n": {silent},
		"AGE PID PROCESS HOLDS SEQ OR KEY BYTES REQUEST\n" +
			"3s 7 caller 1 payload finished, views kept - 1 B -\n" +
			"process 4711 (talker\\n) has not said what it has under way\n": {{PID: 7, Name: "caller", Together: "kept", Payloads: 1, Bytes: 1, Age: 3 * time.Second}, silent},
	} {
		var out strings.Builder
		if err := writeLeases(&out, all); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(strings.Fields(out.String()), " "); got != strings.Join(strings.Fields(want), " ") {
			t.Errorf("%s\nwant\n%s", out.String(), want)
		}
	}
}
