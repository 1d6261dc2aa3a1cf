package wire_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestKindsAreDocumented holds the table of kinds to docs/protocol.md, whose
// tables have the number, the name and the direction of each.
func TestKindsAreDocumented(t *testing.T) {
	document := protocolPage(t)
	directions := map[string]wire.Direction{
		"to the host":             wire.ToHost,
		"to the client":           wire.ToClient,
		"both":                    wire.ToHost | wire.ToClient,
		"to a peer":               wire.ToPeer,
		"to the host or a peer":   wire.ToHost | wire.ToPeer,
		"to the client or a peer": wire.ToClient | wire.ToPeer,
		"both, and to a peer":     wire.ToHost | wire.ToClient | wire.ToPeer,
	}
	descriptors := []string{"", "one descriptor", "two descriptors", "three descriptors"}
	row := regexp.MustCompile("(?m)^\\| (\\d+) \\| `(\\w+)` \\| ([^|]*) \\| (.*)$")
	documented := map[wire.Kind]bool{}
	for _, match := range row.FindAllStringSubmatch(document, -1) {
		number, err := strconv.ParseUint(match[1], 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		kind := wire.Kind(number)
		documented[kind] = true
		direction, ok := directions[match[3]]
		if !ok || kind.String() != match[2] || kind.Direction() != direction {
			t.Errorf("kind %d is %v with direction %d, documented as %s %s", number, kind, kind.Direction(), match[2], match[3])
		}
		_, most := kind.Descriptors()
		if got := regexp.MustCompile(`\w+ descriptors?\b`).FindString(match[4]); got != descriptors[most] {
			t.Errorf("%v comes with up to %d descriptors, documented as: %s", kind, most, match[4])
		}
	}
	for _, kind := range allKinds() {
		if !documented[kind] {
			t.Errorf("%v is not documented", kind)
		}
	}
}

// TestVersionsAreDocumented holds docs/protocol.md to the versions that the
// package speaks, and its table of them to the kinds and fields that each added.
func TestVersionsAreDocumented(t *testing.T) {
	document := protocolPage(t)
	spoken := fmt.Sprintf("This is version %d.\nA host accepts versions %d to %d.", wire.Version, wire.VersionMin, wire.Version)
	if !strings.Contains(document, spoken) {
		t.Errorf("docs/protocol.md does not say: %s", spoken)
	}
	added := map[uint16]string{}
	for _, match := range regexp.MustCompile(`(?m)^\| (\d+) \| ([^|]*) \|$`).FindAllStringSubmatch(section(document, "Versions"), -1) {
		version, err := strconv.ParseUint(match[1], 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		added[uint16(version)] = match[2]
	}
	if len(added) != wire.Version-wire.VersionMin+1 {
		t.Errorf("%d versions are documented, %d to %d are spoken", len(added), wire.VersionMin, wire.Version)
	}
	for version, what := range added {
		var want []string
		for _, kind := range allKinds() {
			if later := laterFields[kind]; version > wire.VersionMin && (kind.Since() == version || later.since == version) {
				want = append(want, kind.String())
			}
		}
		var got []string
		for _, match := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(what, -1) {
			got = append(got, match[1])
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("what version %d added (-code +document):\n%s", version, diff)
		}
	}
	for kind, later := range laterFields {
		row := regexp.MustCompile(fmt.Sprintf("(?m)^\\| %d \\| `%v` .*; from version %d: (.*) \\|$", kind, kind, later.since))
		match := row.FindStringSubmatch(document)
		if match == nil {
			t.Errorf("docs/protocol.md does not say what %v has from version %d on", kind, later.since)
			continue
		}
		for _, name := range later.names {
			if !regexp.MustCompile(`\b` + name + `\b`).MatchString(match[1]) {
				t.Errorf("%v has %s from version %d on, documented is: %s", kind, name, later.since, match[1])
			}
		}
	}
}

func protocolPage(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "protocol.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// section returns what stands below a heading of a page.
func section(page, heading string) string {
	_, text, _ := strings.Cut(page, "\n## "+heading+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}
