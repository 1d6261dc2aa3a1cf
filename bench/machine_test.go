package bench

import "testing"

func TestCPUModel(t *testing.T) {
	tests := []struct{ name, info, want string }{
		{"amd64", "processor\t: 0\nmodel\t\t: 207\nmodel name\t: Some: CPU\nmodel name\t: Other\n", "Some: CPU"},
		{"arm64", "processor\t: 0\nCPU part\t: 0xd0c\n", "unknown CPU"},
		{"elsewhere", "", "unknown CPU"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := cpuModel([]byte(tt.info)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
