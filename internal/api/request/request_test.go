package request

import (
	"strings"
	"testing"

	"samovar/internal/fault"
	"samovar/internal/resource"
)

func TestNames(t *testing.T) {
	long := strings.Repeat("a", 63)
	for name, want := range map[string][2]bool{ // volume or pool, node
		"tea": {true, true}, "t": {true, true}, "7": {true, true}, "db-01": {true, true}, "a--b": {true, true}, long: {true, true},
		long + "a": {false, true}, strings.Repeat("a", 254): {false, false}, "n1.example.com": {false, true},
		"": {}, "-tea": {}, "tea-": {}, "Tea": {}, "tea@monday": {}, "te a": {}, "../etc": {}, "a/b": {}, "té": {},
		"a..b": {}, ".a": {}, "a.": {}, "a.-b": {}, "a-.b": {}, "a_b": {}, "tea\n": {}, "\x00": {},
	} {
		for i, check := range []func(string) error{func(n string) error { return Name("volume", n) }, NodeName} {
			err := check(name)
			if (err == nil) != want[i] {
				t.Errorf("%q, rule %d: %v", name, i, err)
			}
			if err != nil && (!fault.Is(err, fault.Invalid) || strings.ContainsAny(err.Error(), "\n\x00")) {
				t.Errorf("%q: %q", name, err)
			}
		}
	}
}

func TestVolume(t *testing.T) {
	good := resource.NewVolume{Name: "tea", Size: 10 << 30, Copies: 2}
	for _, c := range []struct {
		name string
		edit func(*resource.NewVolume)
		want string // part of the error; empty: accepted
	}{
		{"plain", func(*resource.NewVolume) {}, ""},
		{"pools", func(v *resource.NewVolume) { v.Pools = []string{"ssd1", "ssd2"} }, ""},
		{"extent", func(v *resource.NewVolume) { v.ExtentSize = 1 << 20 }, ""},
		{"name", func(v *resource.NewVolume) { v.Name = "Tea" }, "a name has"},
		{"size", func(v *resource.NewVolume) { v.Size = 0 }, "must be above zero"},
		{"odd size", func(v *resource.NewVolume) { v.Size = 1000 }, "the next one is 1024"},
		{"no copies", func(v *resource.NewVolume) { v.Copies = 0 }, "1 to 16 replicas"},
		{"many copies", func(v *resource.NewVolume) { v.Copies = 17 }, "1 to 16 replicas"},
		{"small extent", func(v *resource.NewVolume) { v.ExtentSize = 1 << 19 }, "power of two"},
		{"odd extent", func(v *resource.NewVolume) { v.ExtentSize = 3 << 20 }, "power of two"},
		{"few pools", func(v *resource.NewVolume) { v.Pools = []string{"ssd1"} }, "2 replicas need 2 pools"},
		{"pool twice", func(v *resource.NewVolume) { v.Pools = []string{"ssd1", "ssd1"} }, "named twice"},
		{"pool name", func(v *resource.NewVolume) { v.Pools = []string{"ssd1", "@"} }, "a name has"},
	} {
		v := good
		c.edit(&v)
		check(t, c.name, Volume(v), c.want)
	}
}

func TestPoolAttachCall(t *testing.T) {
	check(t, "pool", Pool(resource.NewPool{Node: "n1", Dir: "/srv/ssd1", Name: "ssd1"}), "")
	check(t, "pool name", Pool(resource.NewPool{Node: "n1", Dir: "/srv/ssd1"}), "a name has")
	check(t, "pool node", Pool(resource.NewPool{Dir: "/srv/ssd1", Name: "ssd1"}), "a node's name")
	for _, dir := range []string{"", "srv", "./srv", "/srv/../etc", "/srv/"} {
		check(t, "dir "+dir, Pool(resource.NewPool{Node: "n1", Dir: dir, Name: "ssd1"}), "whole path")
	}
	check(t, "attach here", Attach(resource.Attach{}), "")
	check(t, "attach", Attach(resource.Attach{Node: "n1"}), "")
	check(t, "attach", Attach(resource.Attach{Node: "N 1"}), "a node's name")
	check(t, "call", Call("create-replica"), "")
	check(t, "call", Call("../x"), "a name has")
}

func check(t *testing.T, name string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case want != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: %v, want %q", name, err, want)
	}
}
