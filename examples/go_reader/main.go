// Command go_reader reads shards of probe rows without an ArrayRecord library.
//
//	go run . ../../rows/train/*.arrayrecord
//
// It prints a line for each row: shard, position, probe, row_index, n_measurements, first and last
// time, failed pings, and a CRC-32C over all decoded measurements (see measurement.appendTo). What
// it relies on is docs/format.md. Exit code 1: a file is damaged or not what it should be.
package main

import (
	"bufio"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const timeFormat = "2006-01-02T15:04:05.000000"

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: go_reader SHARD…, .arrayrecord or .tfrecord")
		os.Exit(2)
	}
	output := bufio.NewWriter(os.Stdout)
	fmt.Fprintln(output, "shard\tposition\tsrc_addr\trow_index\tn_measurements\tfirst\tlast\tfailed\tcrc32c")
	for _, path := range os.Args[1:] {
		if err := printShard(path, output); err != nil {
			output.Flush()
			fmt.Fprintf(os.Stderr, "error: %s: %s\n", path, err)
			os.Exit(1)
		}
	}
	if err := output.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// printShard prints the rows of one file.
func printShard(path string, output io.Writer) error {
	each := func(position int, record []byte) error {
		line, err := describe(record)
		if err == nil {
			_, err = fmt.Fprintf(output, "%s\t%d\t%s\n", filepath.Base(path), position, line)
		}
		return err
	}
	if strings.HasSuffix(path, ".tfrecord") {
		return readTFRecord(path, each)
	}
	reader, err := openArrayRecord(path)
	if err != nil {
		return err
	}
	defer reader.file.Close()
	return reader.each(each)
}

// describe decodes a record with all its measurements, and sums them up.
func describe(record []byte) (string, error) {
	row, err := decodeRow(record)
	if err != nil {
		return "", err
	}
	measurements, err := decodeMeasurements(row.measurements)
	if err != nil {
		return "", err
	}
	if int64(len(measurements)) != row.nMeasurements {
		return "", fmt.Errorf("%d measurements, the row says %d", len(measurements), row.nMeasurements)
	}
	failed, crc := 0, uint32(0)
	var buffer []byte
	for _, measurement := range measurements {
		if measurement.rtt < 0 {
			failed++
		}
		buffer = measurement.appendTo(buffer[:0])
		crc = crc32.Update(crc, castagnoli, buffer)
	}
	first, last := time.UnixMicro(row.firstUs).UTC(), time.UnixMicro(row.lastUs).UTC()
	return fmt.Sprintf("%s\t%d\t%d\t%s\t%s\t%d\t%08x", row.srcAddr, row.rowIndex, row.nMeasurements,
		first.Format(timeFormat), last.Format(timeFormat), failed, crc), nil
}
