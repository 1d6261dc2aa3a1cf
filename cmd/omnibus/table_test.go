package main

import (
	"strings"
	"testing"
)

// TestTableOfWideNames: columns begin below each other on the screen, where a character may
// take two.
func TestTableOfWideNames(t *testing.T) {
	var out strings.Builder
	rows := table{heading: []string{"STAGE", "QUEUED", ""}}
	rows.add("思考者", 7, "x")
	rows.add("talker", 12, "")
	rows.add("声", 3, "y")
	if err := rows.write(&out); err != nil {
		t.Fatal(err)
	}
	const want = "STAGE   QUEUED\n" +
		"思考者  7       x\n" +
		"talker  12\n" +
		"声      3       y\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// Other programs choose their names: they are neither obeyed nor taken for rows.
func TestTableOfStrangers(t *testing.T) {
	var out strings.Builder
	rows := table{heading: []string{"PROCESS", "PID"}}
	rows.add("evil\x1b[2J\nupper/0\t8\r\x00\u202e", 7)
	if err := rows.write(&out); err != nil {
		t.Fatal(err)
	}
	const want = "PROCESS                              PID\n" + `evil\x1b[2J\nupper/0\t8\r\x00\u202e` + "  7\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}
