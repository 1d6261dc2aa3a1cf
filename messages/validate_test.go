package messages_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/messages"
)

func TestLargestLabelsPass(t *testing.T) {
	attrs := map[string]string{}
	for i := range messages.MaxAttrs {
		attrs[fmt.Sprintf("%0*d", messages.MaxAttrKeyBytes, i)] = strings.Repeat("v", messages.MaxAttrValueBytes)
	}
	if err := messages.ValidateLabels(strings.Repeat("k", messages.MaxKeyBytes), attrs); err != nil {
		t.Errorf("ValidateLabels: %v", err)
	}
	if err := messages.ValidateTraceState(strings.Repeat("s", messages.MaxTraceStateBytes)); err != nil {
		t.Errorf("ValidateTraceState: %v", err)
	}
}

func TestValidateRejects(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n+1) }
	many := map[string]string{}
	for i := range messages.MaxAttrs + 1 {
		many[fmt.Sprint(i)] = ""
	}
	tests := []struct {
		name  string
		err   error
		field string
	}{
		{"long key", messages.ValidateLabels(long(messages.MaxKeyBytes), nil), "key"},
		{"key not UTF-8", messages.ValidateLabels("\xc0\xaf", nil), "key"},
		{"attribute without a name", messages.ValidateLabels("", map[string]string{"": "v"}), "attributes"},
		{"long attribute name", messages.ValidateLabels("", map[string]string{long(messages.MaxAttrKeyBytes): "v"}), "attributes"},
		{"long attribute", messages.ValidateLabels("", map[string]string{"a": long(messages.MaxAttrValueBytes)}), "attributes"},
		{"attribute not UTF-8", messages.ValidateLabels("", map[string]string{"a": "\xff"}), "attributes"},
		{"too many attributes", messages.ValidateLabels("", many), "attributes"},
		{"long trace state", messages.ValidateTraceState(long(messages.MaxTraceStateBytes)), "trace"},
		{"trace state not UTF-8", messages.ValidateTraceState("\xff"), "trace"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var typed *messages.MalformedError
			if !errors.As(tt.err, &typed) {
				t.Fatalf("error %v, want a *MalformedError", tt.err)
			}
			if typed.Field != tt.field {
				t.Errorf("error %q names field %q, want %q", tt.err, typed.Field, tt.field)
			}
		})
	}
}
