package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
)

// measurement is one ping: µs since 1970, whom, and float32 milliseconds or -1.
type measurement struct {
	timeUs int64
	dst    netip.Addr
	rtt    float32
}

// row is one record.
type row struct {
	srcAddr       string
	rowIndex      int64
	nMeasurements int64
	firstUs       int64
	lastUs        int64
	measurements  []byte
}

// decodeRow reads a record: an Arrow IPC stream, or a tf.train.Example.
func decodeRow(record []byte) (row, error) {
	if len(record) > 0 && record[0] == 0x0A {
		return decodeExample(record)
	}
	batch, err := readBatch(record)
	if err != nil {
		return row{}, err
	}
	if batch.NumRows() != 1 {
		return row{}, fmt.Errorf("%d rows in a record", batch.NumRows())
	}
	srcAddr, err1 := column[string](batch, "src_addr")
	measurements, err2 := column[[]byte](batch, "measurements")
	rowIndex, err3 := column[int32](batch, "row_index")
	n, err4 := column[int32](batch, "n_measurements")
	first, err5 := column[arrow.Timestamp](batch, "first_timestamp")
	last, err6 := column[arrow.Timestamp](batch, "last_timestamp")
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		return row{}, err
	}
	return row{
		srcAddr:       srcAddr.Value(0),
		rowIndex:      int64(rowIndex.Value(0)),
		nMeasurements: int64(n.Value(0)),
		firstUs:       int64(first.Value(0)),
		lastUs:        int64(last.Value(0)),
		measurements:  measurements.Value(0),
	}, nil
}

// decodeExample reads the columns from the features of a tf.train.Example.
func decodeExample(record []byte) (row, error) {
	example, err := parseMessage(record)
	if err != nil {
		return row{}, err
	}
	features, err := parseMessage(example.bytes(1))
	if err != nil {
		return row{}, err
	}
	texts, numbers := map[string][]byte{}, map[string]int64{}
	for _, feature := range features {
		entry, err := parseMessage(feature.bytes)
		if err != nil {
			return row{}, err
		}
		name := string(entry.bytes(1))
		value, err := parseMessage(entry.bytes(2))
		if err != nil || len(value) != 1 {
			return row{}, fmt.Errorf("feature %s is no single list", name)
		}
		list, err := parseMessage(value[0].bytes)
		if err != nil {
			return row{}, err
		}
		switch value[0].tag {
		case 1:
			texts[name] = list.bytes(1)
		case 3:
			number, used := binary.Uvarint(list.bytes(1))
			if used <= 0 {
				return row{}, fmt.Errorf("feature %s has no number", name)
			}
			numbers[name] = int64(number)
		}
	}
	for _, name := range []string{"src_addr", "measurements"} {
		if _, ok := texts[name]; !ok {
			return row{}, fmt.Errorf("no feature %s", name)
		}
	}
	for _, name := range []string{"row_index", "n_measurements", "first_timestamp", "last_timestamp"} {
		if _, ok := numbers[name]; !ok {
			return row{}, fmt.Errorf("no feature %s", name)
		}
	}
	return row{
		srcAddr:       string(texts["src_addr"]),
		measurements:  texts["measurements"],
		rowIndex:      numbers["row_index"],
		nMeasurements: numbers["n_measurements"],
		firstUs:       numbers["first_timestamp"],
		lastUs:        numbers["last_timestamp"],
	}, nil
}

// decodeMeasurements reads either encoding; they are told apart by the first four bytes.
func decodeMeasurements(data []byte) ([]measurement, error) {
	if bytes.HasPrefix(data, []byte("PLc1")) {
		return decodeCompact(data)
	}
	batch, err := readBatch(data)
	if err != nil {
		return nil, err
	}
	times, err1 := column[arrow.Timestamp](batch, "event_time")
	destinations, err2 := column[string](batch, "dst_addr")
	rtts, err3 := column[float32](batch, "rtt")
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	found := make([]measurement, batch.NumRows())
	for i := range found {
		dst, err := netip.ParseAddr(destinations.Value(i))
		if err != nil {
			return nil, err
		}
		found[i] = measurement{int64(times.Value(i)), dst, rtts.Value(i)}
	}
	return found, nil
}

// decodeCompact reads the columns that begin with PLc1.
func decodeCompact(data []byte) ([]measurement, error) {
	const headerSize = 20
	if len(data) < headerSize {
		return nil, errors.New("compact measurements are cut")
	}
	n := int(binary.LittleEndian.Uint32(data[4:]))
	numIPv6 := int(binary.LittleEndian.Uint32(data[8:]))
	firstSecond := int64(binary.LittleEndian.Uint64(data[12:]))
	isMixed := 0 < numIPv6 && numIPv6 < n
	bitsSize := 0
	if isMixed {
		bitsSize = (n + 7) / 8
	}
	expected := headerSize + 6*n + bitsSize + 4*(n-numIPv6) + 16*numIPv6
	if numIPv6 > n || len(data) != expected {
		return nil, fmt.Errorf("%d compact measurements in %d bytes, not %d", n, len(data), expected)
	}
	seconds := data[headerSize:]
	codes := seconds[4*n:]
	bits := codes[2*n:]
	ipv4 := bits[bitsSize:]
	ipv6 := ipv4[4*(n-numIPv6):]
	found := make([]measurement, n)
	for i := range found {
		second := firstSecond + int64(binary.LittleEndian.Uint32(seconds[4*i:]))
		isIPv6 := numIPv6 == n
		if isMixed {
			isIPv6 = bits[i/8]>>(i%8)&1 == 1
		}
		var dst netip.Addr
		if isIPv6 && len(ipv6) >= 16 {
			dst, ipv6 = netip.AddrFrom16([16]byte(ipv6)), ipv6[16:]
		} else if !isIPv6 && len(ipv4)-len(ipv6) >= 4 {
			dst, ipv4 = netip.AddrFrom4([4]byte(ipv4)), ipv4[4:]
		} else {
			return nil, fmt.Errorf("not as many IPv6 destinations as the %d that the header says", numIPv6)
		}
		found[i] = measurement{second * 1_000_000, dst, rttOf(binary.LittleEndian.Uint16(codes[2*i:]))}
	}
	return found, nil
}

// rttOf decodes the two bytes of an RTT: 5 bits of exponent, 11 of mantissa, of µs.
func rttOf(code uint16) float32 {
	if code == 0xFFFF {
		return -1
	}
	return float32(float64(uint64(code&0x7FF)<<(code>>11)) / 1000)
}

// readBatch reads the one batch of an Arrow IPC stream.
func readBatch(stream []byte) (arrow.RecordBatch, error) {
	reader, err := ipc.NewReader(bytes.NewReader(stream))
	if err != nil {
		return nil, fmt.Errorf("no Arrow IPC stream: %w", err)
	}
	defer reader.Release()
	batch, err := reader.Read()
	if err != nil {
		return nil, fmt.Errorf("no batch: %w", err)
	}
	batch.Retain()
	return batch, nil
}

// values is a column whose values are of one type.
type values[T any] interface{ Value(int) T }

func column[T any](batch arrow.RecordBatch, name string) (values[T], error) {
	numbers := batch.Schema().FieldIndices(name)
	if len(numbers) != 1 {
		return nil, fmt.Errorf("no column %s", name)
	}
	found, ok := batch.Column(numbers[0]).(values[T])
	if !ok {
		return nil, fmt.Errorf("column %s is %s", name, batch.Column(numbers[0]).DataType())
	}
	return found, nil
}

// appendTo appends what is summed up of a measurement: 28 bytes, time and RTT little-endian, the
// destination as 16 bytes in network order, IPv4 as ::ffff:a.b.c.d.
func (one measurement) appendTo(buffer []byte) []byte {
	buffer = binary.LittleEndian.AppendUint64(buffer, uint64(one.timeUs))
	dst := one.dst.As16()
	buffer = append(buffer, dst[:]...)
	return binary.LittleEndian.AppendUint32(buffer, math.Float32bits(one.rtt))
}
