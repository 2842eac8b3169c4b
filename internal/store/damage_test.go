package store

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"samovar/internal/fault"
	"samovar/internal/store/disk"
	"samovar/internal/store/disk/memory"
	"samovar/internal/volume"
)

// damagedWorld is a pool with two replicas, closed cleanly; the first is catching up, has a record and a log.
func damagedWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, memory.New(3, memory.Options{}), "/pool", testOptions(3))
	state := testState(testVolume, testSize, 2)
	state.CatchingUp = true
	w.ok(&Op{Code: SaveMissing, Missing: set(3, 9)}, &Op{Code: SaveState, State: state},
		&Op{Code: SaveRecord, Record: &volume.ChangeRecord{Pool: otherPool, Start: 3, Blocks: set(1, 2)}})
	for n := range uint64(4) {
		w.ok(&Op{Code: LogChange, Add: []uint64{n}})
	}
	w.ok(&Op{Code: LogChange, Drop: []uint64{1}})
	must(t, w.pool.CreateReplica(testConfiguration(otherVolume, 1<<20), volume.ReplicaState{}, nil))
	must(t, w.pool.Close())
	return w
}

func (w *world) load(name string) []byte {
	w.t.Helper()
	b, err := readFile(w.fs, name)
	must(w.t, err)
	return b
}

func (w *world) save(name string, content []byte) {
	w.t.Helper()
	f, err := w.fs.Open(name, disk.Create|disk.Truncate)
	must(w.t, err)
	if len(content) > 0 {
		must(w.t, f.WriteAt(content, 0, false))
	}
	must(w.t, f.Close())
}

// openDamaged opens the damaged replica and checks that the other one opens whatever happened.
func (w *world) openDamaged() (volume.Stored, error) {
	w.t.Helper()
	w.openPool()
	defer w.pool.Close()
	other, _, err := w.pool.OpenReplica(otherVolume)
	must(w.t, err)
	must(w.t, other.Close())
	info, err := w.pool.Info()
	must(w.t, err)
	r, stored, err := w.pool.OpenReplica(testVolume)
	for _, i := range info.Replicas {
		if bad := i.Volume == testVolume && err != nil; (i.Fault != nil) != bad {
			w.t.Fatalf("the pool shows %+v", i)
		}
	}
	if err == nil {
		must(w.t, r.Close())
	}
	return stored, err
}

func (w *world) wantDamage(name string, kind fault.Kind) {
	w.t.Helper()
	_, err := w.openDamaged()
	wantKind(w.t, err, kind)
	text := err.Error()
	if !strings.Contains(text, name) || !strings.Contains(text, testVolume.String()) || !strings.Contains(text, "ssd1") {
		w.t.Fatalf("%q does not name file, volume and pool", text)
	}
	if !strings.Contains(text, "restore the file from a copy") && !strings.Contains(text, "start that version") {
		w.t.Fatalf("%q shows no way out", text)
	}
}

// reframe changes a frame and makes its checksums right again.
func reframe(file []byte, change func(b []byte)) []byte {
	b := bytes.Clone(file)
	change(b)
	binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(b[:12], castagnoli))
	body := b[64:]
	if string(b[:8]) == magicLog {
		body = b[64:logSlot]
	}
	binary.LittleEndian.PutUint32(b[56:], crc32.Update(crc32.Checksum(b[16:56], castagnoli), castagnoli, body))
	return b
}

func TestDamage(t *testing.T) {
	w := damagedWorld(t)
	dir := "/pool/volume-" + testVolume.String() + "/"
	rng := rand.New(rand.NewPCG(1, 1))
	for _, name := range []string{"state", "log", "missing", recordName(otherPool)} {
		path := dir + name
		good := w.load(path)
		for range 40 { // truncated
			w.save(path, good[:rng.IntN(len(good))])
			w.wantDamage(name, fault.Corrupt)
		}
		w.save(path, good[:len(good)-1])
		w.wantDamage(name, fault.Corrupt)
		w.save(path, append(bytes.Clone(good), 0))
		w.wantDamage(name, fault.Corrupt)
		if name != "log" { // see TestDamagedLog
			for i := range good {
				if len(good) > 200 && rng.IntN(4) > 0 {
					continue
				}
				bad := bytes.Clone(good)
				bad[i] ^= 1 << rng.IntN(8)
				w.save(path, bad)
				w.wantDamage(name, fault.Corrupt)
			}
		}
		w.save(path, reframe(good, func(b []byte) { b[24]++ }))
		w.wantDamage(name, fault.Foreign)
		w.save(path, reframe(good, func(b []byte) { b[40]++ }))
		w.wantDamage(name, fault.Foreign)
		w.save(path, reframe(good, func(b []byte) { b[8]++ }))
		w.wantDamage(name, fault.Newer)
		w.save(path, reframe(good, func(b []byte) { b[8] = 0 }))
		w.wantDamage(name, fault.Corrupt)
		must(t, w.fs.Remove(path))
		if strings.HasPrefix(name, recordPrefix) { // a lost record is the core's business: it then knows less
			stored, err := w.openDamaged()
			must(t, err)
			if len(stored.Records) != 0 {
				t.Fatal("a record without a file")
			}
		} else {
			w.wantDamage(name, fault.Corrupt)
		}
		w.save(path, good)
	}
	w.save(dir+recordName(volume.PoolID{5}), w.load(dir+recordName(otherPool)))
	w.wantDamage(recordName(volume.PoolID{5}), fault.Foreign)
	must(t, w.fs.Remove(dir+recordName(volume.PoolID{5})))
	for _, size := range []int64{0, testSize - 512, testSize + 512} {
		f, err := w.fs.Open(dir+"data", 0)
		must(t, err)
		must(t, f.SetSize(size))
		w.wantDamage("data", fault.Corrupt)
		must(t, f.SetSize(testSize))
	}
	must(t, w.fs.Remove(dir+"data"))
	w.wantDamage("data", fault.Corrupt)
}

// A newer samovar may put a field into the state without a new version by mistake; dropping it silently would
// be worse than to refuse.
func TestUnknownFieldIsNewer(t *testing.T) {
	w := damagedWorld(t)
	path := "/pool/volume-" + testVolume.String() + "/state"
	body := w.load(path)[frameHeader:]
	body = append([]byte(`{"x":1,`), body[1:]...)
	w.save(path, encodeFrame(frameKind{magicState, stateVersion, testPool, testVolume}, body))
	w.wantDamage("state", fault.Newer)
	w.save(path, encodeFrame(frameKind{magicState, stateVersion, testPool, testVolume}, append(body, "{}"...)))
	w.wantDamage("state", fault.Corrupt)
}

// Whatever byte of a log is damaged: it is refused, or nothing that must be in it is lost.
func TestDamagedLog(t *testing.T) {
	w := damagedWorld(t)
	path := "/pool/volume-" + testVolume.String() + "/log"
	good := w.load(path)
	refused := 0
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1 << (i % 8)
		content, err := parseLog(bad, testPool, testVolume, testSize)
		if err != nil {
			wantKind(t, err, fault.Corrupt)
			refused++
			continue
		}
		for _, n := range []uint64{0, 2, 3} {
			if !content.regions.Has(n) {
				t.Fatalf("byte %d: region %d is lost", i, n)
			}
		}
	}
	if refused < 5*logSlot { // header, first entry, four adds; the entry with the drop is the last
		t.Fatalf("only %d damaged bytes were noticed", refused)
	}
	bad := bytes.Clone(good)
	bad[3*logSlot+40] ^= 1
	w.save(path, bad)
	w.wantDamage("log", fault.Corrupt)
}

// A torn tail is cut: the entry that was being written when the power went is lost, with any mixture of its
// sectors, and nothing else.
func TestTornLog(t *testing.T) {
	var adds []byte
	adds = set(0, 1, 2, 3, 4, 5).Append(adds)
	long := bytes.Repeat([]byte{1, 1}, 400)
	file := encodeLog(testPool, testVolume, 77, 16<<10, set(1, 2))
	second := appendEntry(nil, 77, 2, nil, adds)
	third := appendEntry(nil, 77, 3, nil, long)
	stale := appendEntry(nil, 76, 2, nil, adds) // of an older file in the same blocks
	const size = 1 << 40
	for mask := range 1 << (len(third) / logSlot) {
		b := bytes.Clone(file)
		copy(b[2*logSlot:], second)
		whole := true
		for s := range len(third) / logSlot {
			if mask&(1<<s) != 0 {
				copy(b[(3+s)*logSlot:], third[s*logSlot:(s+1)*logSlot])
			} else {
				whole = false
			}
		}
		content, err := parseLog(b, testPool, testVolume, size)
		must(t, err)
		want := set(0, 1, 1, 2, 2, 3, 4, 5)
		if whole {
			for n := range uint64(400) {
				want.Add(2*n+1, 2*n+2)
			}
		}
		if !sameSet(content.regions, want) || content.torn != (mask != 0 && !whole) {
			t.Fatalf("mask %b: torn %v, %d regions", mask, content.torn, content.regions.Count())
		}
	}
	b := bytes.Clone(file)
	copy(b[2*logSlot:], stale)
	content, err := parseLog(b, testPool, testVolume, size)
	must(t, err)
	if !content.torn || content.regions.Count() != 1 {
		t.Fatal("an entry of another file was taken")
	}
	copy(b[3*logSlot:], third)
	_, err = parseLog(b, testPool, testVolume, size)
	wantKind(t, err, fault.Corrupt)
	copy(b[2*logSlot:], appendEntry(nil, 77, 2, nil, set(1<<30, 1<<30+1).Append(nil)))
	_, err = parseLog(b, testPool, testVolume, size)
	wantKind(t, err, fault.Corrupt)
}

func TestDamagedPool(t *testing.T) {
	w := damagedWorld(t)
	good := w.load("/pool/identity")
	open := func(kind fault.Kind, words ...string) {
		t.Helper()
		_, err := OpenPool(w.fs, "/pool", w.options)
		wantKind(t, err, kind)
		for _, word := range append(words, "/pool") {
			if !strings.Contains(err.Error(), word) {
				t.Fatalf("%q does not say %q", err, word)
			}
		}
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 4
		w.save("/pool/identity", bad)
		open(fault.Corrupt)
		w.save("/pool/identity", good[:i])
		open(fault.Corrupt)
	}
	w.save("/pool/identity", reframe(good, func(b []byte) { b[8]++ }))
	open(fault.Newer)
	w.save("/pool/identity", good)
	foreign := w.options
	foreign.Cluster[0]++
	_, err := OpenPool(w.fs, "/pool", foreign)
	wantKind(t, err, fault.Foreign)
	_, err = OpenPool(w.fs, "/pool", Options{})
	wantKind(t, err, fault.Invalid)
	must(t, w.fs.Remove("/pool/identity"))
	open(fault.Corrupt, "identity", "not empty")
	id := Identity{Pool: testPool, Cluster: testCluster, Name: "ssd1"}
	wantKind(t, CreatePool(w.fs, "/pool", id, epochStart), fault.Exists)
	w.save("/pool/identity", good)
	wantKind(t, CreatePool(w.fs, "/pool", id, epochStart), fault.Exists)
	// A disk that is not mounted.
	must(t, w.fs.Mkdir("/empty"))
	_, err = OpenPool(w.fs, "/empty", w.options)
	wantKind(t, err, fault.NotFound)
	if !strings.Contains(err.Error(), "/empty") || !strings.Contains(err.Error(), "mount") {
		t.Fatalf("%v", err)
	}
	_, err = OpenPool(w.fs, "/nowhere", w.options)
	wantKind(t, err, fault.NotFound)
	_, err = OpenPool(w.fs, "/pool/identity", w.options)
	wantKind(t, err, fault.NotFound)
	wantKind(t, CreatePool(w.fs, "/x", Identity{}, epochStart), fault.Invalid)
	// A replica's folder moved from another pool.
	other := Identity{Pool: otherPool, Cluster: testCluster, Name: "ssd2"}
	must(t, CreatePool(w.fs, "/empty", other, epochStart))
	p, err := OpenPool(w.fs, "/empty", w.options)
	must(t, err)
	defer p.Close()
	dir := "/empty/volume-" + testVolume.String()
	must(t, w.fs.Mkdir(dir))
	w.save(dir+"/state", w.load("/pool/volume-"+testVolume.String()+"/state"))
	_, _, err = p.OpenReplica(testVolume)
	wantKind(t, err, fault.Foreign)
	must(t, w.fs.Mkdir("/empty/something"))
	info, err := p.Info()
	must(t, err)
	if !slices.ContainsFunc(info.Leftovers, func(l Leftover) bool { return l.Kind == Unknown && l.Name == "something" }) {
		t.Fatalf("leftovers %+v", info.Leftovers)
	}
	wantKind(t, p.Purge("something"), fault.Invalid)
	_, err = p.DeleteReplica(testVolume) // also a damaged one
	must(t, err)
}

func FuzzParseState(f *testing.F) {
	good, _ := encodeState(*testState(testVolume, testSize, 1))
	f.Add(good[frameHeader:])
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := parseState(encodeFrame(frameKind{magicState, 1, testPool, testVolume}, body), testPool, testVolume)
		if err != nil {
			return
		}
		again, err := encodeState(s)
		must(t, err)
		if _, err := parseState(again, testPool, testVolume); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzParseFrame(f *testing.F) {
	f.Add(encodeFrame(frameKind{magicState, 1, testPool, testVolume}, []byte("body")))
	f.Add([]byte(magicState))
	f.Fuzz(func(t *testing.T, b []byte) {
		k := frameKind{magicState, 1, testPool, testVolume}
		if body, err := parseFrame(k, b); err == nil && !bytes.Equal(encodeFrame(k, body)[:16], b[:16]) {
			t.Fatal("two forms of one frame")
		}
		_, _, _ = parseIdentity(b)
		_, _ = parseRecord(b, testPool, testVolume, testSize)
		_, _ = parseMissing(b, testPool, testVolume, testSize)
	})
}

func FuzzParseLog(f *testing.F) {
	file := encodeLog(testPool, testVolume, 1, 4096, set(1, 3))
	f.Add(file, uint32(600), byte(1))
	f.Add(appendEntry(file[:1024:1024], 1, 2, []byte{1, 1}, []byte{3, 1}), uint32(0), byte(0))
	f.Fuzz(func(t *testing.T, b []byte, where uint32, flip byte) {
		b = bytes.Clone(b)
		if len(b) > 0 {
			b[int(where)%len(b)] ^= flip
		}
		content, err := parseLog(b, testPool, testVolume, testSize)
		if err == nil && outside(content.regions, testSize/volume.RegionSize) {
			t.Fatal("a region outside the volume")
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	r := &volume.ChangeRecord{Pool: otherPool, Start: 9, Blocks: set(1, 4)}
	f.Add(encodeRecord(testPool, testVolume, r)[frameHeader:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		k := frameKind{magicRecord, 1, testPool, testVolume}
		got, err := parseRecord(encodeFrame(k, body), testPool, testVolume, testSize)
		if err == nil && outside(got.Blocks, testSize/volume.BlockSize) {
			t.Fatal("a block outside the volume")
		}
		k.magic = magicMissing
		_, _ = parseMissing(encodeFrame(k, body), testPool, testVolume, testSize)
	})
}
