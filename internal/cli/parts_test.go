package cli

import (
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"samovar/internal/fault"
	"samovar/internal/resource"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "512": 512, "512b": 512, "1k": 1024, "1K": 1024, "4KiB": 4096, "512MiB": 512 << 20, "10G": 10 << 30, "10Gi": 10 << 30,
		"10GiB": 10 << 30, "10 GiB": 10 << 30, " 1TiB ": 1 << 40, "2p": 2 << 50, "1.5TiB": 3 << 39, "0.5k": 512, "10GB": 10e9, "1kB": 1000,
		"18446744073709551615": math.MaxUint64, "10gib": 10 << 30, "1.50k": 1536,
	} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"": "want a size", "x": "want a size", "G": "want a size", "10X": "want a size", "10GiBs": "want a size", "-1": "want a size", "+1": "want a size",
		"1e3": "want a size", "1/2": "want a size", "0x10": "want a size", "1.2.3": "want a size", ".5G": "want a size", "5.G": "want a size", "10i": "want a size",
		"10bb": "want a size", "１０": "want a size", "1,5G": "want a size", "10bib": "want a size",
		"1.5": "no whole number", "0.3k": "no whole number", "18446744073709551616": "too large", "999999999P": "too large",
		strings.Repeat("9", 40): "want a size",
	} {
		if got, err := parseSize(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0", 1: "1B", 1023: "1023B", 1024: "1KiB", 1536: "1.5KiB", 1 << 20: "1MiB", 10 << 30: "10GiB", 3 << 39: "1.5TiB", 1<<30 - 1: "1GiB",
		1<<40 - 1: "1TiB", 1 << 60: "1EiB", math.MaxUint64: "16EiB", 1000: "1000B", 1 << 30 / 10 * 23: "2.3GiB",
	} {
		if got := formatSize(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	// What is printed can be typed, and means about the same; an exact multiple means the same.
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		n := random.Uint64() >> random.IntN(64) >> 4
		back, err := parseSize(formatSize(n))
		if err != nil && !strings.Contains(err.Error(), "no whole number") {
			t.Fatalf("%d: %s: %v", n, formatSize(n), err)
		}
		if err == nil && math.Abs(float64(back)-float64(n)) > 0.06*float64(n) {
			t.Fatalf("%d: %s is %d", n, formatSize(n), back)
		}
	}
}

func TestParseSince(t *testing.T) {
	now := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]eventsQuery{
		"": {}, "0": {after: "0"}, "0000000000000001": {after: "0000000000000001"}, "90m": {from: now.Add(-90 * time.Minute)},
		"2026-03-01": {from: now.AddDate(0, 0, -1)}, "2026-03-01T12:00:00Z": {from: now.Add(-12 * time.Hour)}, "2026-03-01 12:00:00": {from: now.Add(-12 * time.Hour)},
	} {
		if got, err := parseSince(text, now); err != nil || got.after != want.after || !got.from.Equal(want.from) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestSums(t *testing.T) {
	if got := sums(map[string]string{"c": "1", "a": "1", "b": "2"}); got != "a,c=1  b=2" {
		t.Error(got)
	}
}

func TestYAMLKeepsTypes(t *testing.T) {
	text, err := yamlText(map[string]any{"a": "yes", "b": "12", "c": uint64(math.MaxUint64), "d": []string{}, "e": "two\nlines", "f": nil, "g": "<&>", "h": "2026-03-01", "i": "é: ☕", "j": map[string]int{}})
	want := "a: \"yes\"\nb: \"12\"\nc: 18446744073709551615\nd: []\ne: |-\n  two\n  lines\nf: null\ng: <&>\nh: \"2026-03-01\"\ni: 'é: ☕'\nj: {}\n"
	if err != nil || string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
}

func TestAttachmentExamples(t *testing.T) {
	for want, a := range map[string]resource.Attachment{
		"nbd-client -unix '/run/my samovar/nbd.sock' /dev/nbd0 -N tea": {Volume: "tea", Node: "n1", Socket: "/run/my samovar/nbd.sock"},
		"nbd-client 10.0.0.1 10809 /dev/nbd0 -N tea":                   {Volume: "tea", Node: "n1", URI: "nbd://10.0.0.1:10809/tea"},
		"qemu-img info 'nbd://[fd00::1]:10809/tea'":                    {Volume: "tea", Node: "n1", URI: "nbd://[fd00::1]:10809/tea"},
		"qemu-img info 'nbd+unix:///tea?socket=/run/nbd.sock'":         {Volume: "tea", Node: "n1", Local: "nbd+unix:///tea?socket=/run/nbd.sock", URI: "nbd://10.0.0.1:10809/tea"},
	} {
		var b strings.Builder
		drawAttachment(&b, a)
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("%q is missing in:\n%s", want, b.String())
		}
	}
	var b strings.Builder
	if drawAttachment(&b, resource.Attachment{Volume: "tea", Node: "n1"}); strings.Contains(b.String(), "example") {
		t.Error(b.String())
	}
}

// TestHelp keeps the help of every command, and that each has examples.
func TestHelp(t *testing.T) {
	d := &desk{}
	d.prepare()
	var all strings.Builder
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			return
		}
		if cmd.Example == "" || cmd.Short == "" {
			t.Errorf("%s has no example or no description", cmd.CommandPath())
		}
		path := strings.Fields(cmd.CommandPath())[1:]
		if code := d.run(t.Context(), append(path, "--help")...); code != 0 {
			t.Errorf("%s --help: %d %s", cmd.CommandPath(), code, d.err)
		}
		all.WriteString("$ " + cmd.CommandPath() + " --help\n" + d.out.String() + "\n")
		for _, child := range cmd.Commands() {
			visit(child)
		}
	}
	visit(d.root())
	golden(t, "help.golden", all.String())
}

func TestExtraCommands(t *testing.T) {
	var endpoint string
	extra := &cobra.Command{Use: "serve", RunE: func(cmd *cobra.Command, _ []string) error {
		endpoint, _ = cmd.Flags().GetString("endpoint")
		return fault.New(fault.Busy, "serve", "another daemon runs")
	}}
	out := newBuffer()
	root := New(Streams{Out: out, Err: out, Env: func(string) string { return "" }}, Options{Extra: []*cobra.Command{extra}})
	if code := Execute(t.Context(), root, []string{"serve"}); code != 1 || out.String() != "samovar: serve: another daemon runs\n" || endpoint != "127.0.0.1:7700" {
		t.Errorf("%d %q %q", code, out, endpoint)
	}
}

func TestCompletion(t *testing.T) {
	d := newDesk(t)
	for _, c := range []struct{ args, want string }{
		{"volume info", "milk\ntea\n:4\n"}, {"pool info", "ssd1\nssd2\nssd3\n:4\n"}, {"node info", "n1\nn2\nn3\n:4\n"}, {"volume info tea", ":4\n"},
	} {
		if d.run(t.Context(), append(append([]string{"__complete"}, strings.Fields(c.args)...), "")...); d.out.String() != c.want {
			t.Errorf("%s: %q", c.args, d.out)
		}
	}
	d.cluster.Fail("Volumes", fault.New(fault.Internal, "list", "x"))
	if d.run(t.Context(), "__complete", "volume", "info", ""); d.out.String() != ":1\n" {
		t.Errorf("a failure: %q", d.out)
	}
}

func TestIsTerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	file, err := os.CreateTemp(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if IsTerminal(null) || IsTerminal(file) {
		t.Error("a file is no terminal")
	}
}
