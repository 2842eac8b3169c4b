package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"samovar/internal/bitmap"
	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// The sessions of the tests: what an engine, a copier and the node of a replica see.
func testSession(local, remote Purpose) Session {
	s := Session{Number: 0x0123456789abcdef, Version: Version, Local: local, Remote: remote}
	return s.Bind(volume.ID{1, 2, 3}, volume.PoolID{4, 5, 6}, 7, 1<<30)
}

// pair gives the session as the sender of a kind sees it, and as its receiver does.
func pair(k replication.Kind) (from, to Session) {
	switch rules[k].from {
	case Replica:
		return testSession(Replica, Engine), testSession(Engine, Replica)
	default:
		return testSession(rules[k].from, Replica), testSession(Replica, rules[k].from)
	}
}

func allKinds() (list []replication.Kind) {
	for k := range rules {
		if rules[k].name != "" {
			list = append(list, replication.Kind(k))
		}
	}
	return list
}

// fillRandom sets every field that can be reached from v, half of the optional ones to nothing.
func fillRandom(t testing.TB, rng *rand.Rand, v reflect.Value) {
	switch v.Interface().(type) {
	case *bitmap.Bitmap:
		b := &bitmap.Bitmap{}
		for range rng.IntN(20) {
			from := rng.Uint64N(16000)
			b.Add(from, from+1+rng.Uint64N(300))
		}
		v.Set(reflect.ValueOf(b))
		return
	case volume.Range:
		offset := rng.Uint64N(1 << 30)
		v.Set(reflect.ValueOf(volume.Range{Offset: offset, Length: rng.Uint64N(1 << 20)}))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(rng.IntN(2) == 0)
	case reflect.Uint8:
		v.SetUint(uint64(rng.IntN(256)))
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(rng.Uint64() >> (64 - v.Type().Bits()) >> rng.IntN(v.Type().Bits()))
	case reflect.Int64:
		v.SetInt(int64(rng.Uint64()) >> rng.IntN(63))
	case reflect.String:
		v.SetString(fmt.Sprintf("text-%d-€", rng.Uint64()))
	case reflect.Array:
		for i := range v.Len() {
			fillRandom(t, rng, v.Index(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillRandom(t, rng, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			fillRandom(t, rng, v.Field(i))
		}
	case reflect.Slice:
		if n := rng.IntN(5); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		for i := range v.Len() {
			fillRandom(t, rng, v.Index(i))
		}
	case reflect.Interface:
	default:
		t.Fatalf("no random %v", v.Type())
	}
}

// randomMessage makes a message of kind k with random fields that its sender may send.
func randomMessage(t testing.TB, rng *rand.Rand, pool *block.Pool, k replication.Kind) replication.Message {
	from, _ := pair(k)
	var m replication.Message
	v := reflect.ValueOf(&m).Elem()
	for i := range v.NumField() {
		fillRandom(t, rng, v.Field(i))
		bit, optional := map[string]fieldSet{"Configuration": fieldConfiguration, "Bitmap": fieldBitmap,
			"Record": fieldRecord, "Knowledge": fieldKnowledge}[v.Type().Field(i).Name]
		if optional && rules[k].needs&(1<<bit) == 0 && rng.IntN(2) == 0 {
			v.Field(i).SetZero()
		}
	}
	if m.Configuration != nil {
		m.Configuration.Size = 1 << 30
	}
	if m.Knowledge != nil {
		m.Knowledge.Size = 1 << 30
		if rng.IntN(2) == 0 {
			m.Knowledge.Missing = nil
		}
	}
	m.Kind, m.Forward = k, nil
	m.Volume, m.Pool = from.Volume, from.Pool
	if rules[k].opens {
		m.Fence.Epoch = from.Epoch
	}
	m.Range.Length++
	switch rules[k].payload {
	case wholeRange:
		m.Range.Length = 1 + rng.Uint64N(9000)
		m.Payload = randomBuffer(rng, pool, int(m.Range.Length))
	case someBytes:
		if rng.IntN(2) == 0 {
			m.Range.Length = 1 + rng.Uint64N(9000)
			m.Payload = randomBuffer(rng, pool, int(m.Range.Length))
		}
	case segmentPayload:
		if rng.IntN(4) > 0 {
			s := randomSegments(rng, pool)
			m.Payload, m.Range = s, s.Range()
		}
	}
	return m
}

func randomBuffer(rng *rand.Rand, pool *block.Pool, n int) *block.Buffer {
	b := pool.Get(n)
	for i := range b.Bytes() {
		b.Bytes()[i] = byte(rng.Uint32())
	}
	return b
}

func randomSegments(rng *rand.Rand, pool *block.Pool) *Segments {
	s, at := &Segments{}, rng.Uint64N(1<<20)
	for range 1 + rng.IntN(6) {
		g := Segment{Range: volume.Range{Offset: at, Length: 1 + rng.Uint64N(3000)}}
		if rng.IntN(2) == 0 {
			g.Data = randomBuffer(rng, pool, int(g.Range.Length))
		}
		s.List = append(s.List, g)
		at = g.Range.End()
	}
	return s
}

// same compares two values by reflection, bitmaps and buffers by content.
func same(a, b reflect.Value) bool {
	if a.Type() != b.Type() {
		return false
	}
	switch x := a.Interface().(type) {
	case *bitmap.Bitmap:
		y := b.Interface().(*bitmap.Bitmap)
		return (x == nil) == (y == nil) && bytes.Equal(x.Append(nil), y.Append(nil))
	case *block.Buffer:
		y := b.Interface().(*block.Buffer)
		return (x == nil) == (y == nil) && (x == nil || bytes.Equal(x.Bytes(), y.Bytes()))
	}
	switch a.Kind() {
	case reflect.Pointer, reflect.Interface:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() && b.IsNil()
		}
		return same(a.Elem(), b.Elem())
	case reflect.Struct:
		for i := range a.NumField() {
			if !same(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !same(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

func sameMessage(a, b replication.Message) bool { return same(reflect.ValueOf(a), reflect.ValueOf(b)) }

func release(m *replication.Message) {
	switch p := m.Payload.(type) {
	case *block.Buffer:
		p.Release()
	case *Segments:
		p.Release()
	}
	m.Payload = nil
}

// retain takes a reference more, so that a message can be compared after it was sent.
func retain(m *replication.Message) {
	switch p := m.Payload.(type) {
	case *block.Buffer:
		p.Retain()
	case *Segments:
		for _, g := range p.List {
			if g.Data != nil {
				g.Data.Retain()
			}
		}
	}
}

// encode gives the bytes of messages; their payloads stay the caller's.
func encode(t testing.TB, s Session, msgs ...replication.Message) []byte {
	t.Helper()
	e := NewEncoder(s)
	for i := range msgs {
		if err := e.Append(&msgs[i]); err != nil {
			t.Fatal(err)
		}
		retain(&msgs[i])
	}
	size := e.Size()
	var out bytes.Buffer
	if err := e.Flush(&out); err != nil {
		t.Fatal(err)
	}
	if out.Len() != size {
		t.Fatalf("Size was %d, written were %d bytes", size, out.Len())
	}
	return out.Bytes()
}

func wantFault(t testing.TB, err error, kind fault.Kind) {
	t.Helper()
	if err == nil || fault.KindOf(err) != kind {
		t.Fatalf("got error %v, want kind %v", err, kind)
	}
}
