/* Verifies allreduce and allgather of oneCCL: sums RANK SIZE. The ranks find each other by the file `address`. */
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <unistd.h>
#include <vector>
#include <oneapi/ccl.hpp>

static ccl::shared_ptr_class<ccl::kvs> meet(int rank)
{
	if (rank == 0) {
		auto kvs = ccl::create_main_kvs();
		auto address = kvs->get_address();
		std::ofstream("address.new", std::ios::binary).write(address.data(), address.size());
		rename("address.new", "address");
		return kvs;
	}
	while (access("address", R_OK))
		usleep(10000);
	ccl::kvs::address_type address;
	std::ifstream("address", std::ios::binary).read(address.data(), address.size());
	return ccl::create_kvs(address);
}

static void check(bool is_right, const char *call, size_t count, size_t i)
{
	if (!is_right) {
		printf("%s of %zu numbers: the result at %zu is wrong\n", call, count, i);
		exit(1);
	}
}

int main(int, char **argv)
{
	int rank = atoi(argv[1]), size = atoi(argv[2]);
	ccl::init();
	auto communicator = ccl::create_communicator(size, rank, meet(rank));
	for (size_t count : {1, 1000, 250000}) {
		std::vector<float> data(count), sums(count), all(count * size);
		for (size_t i = 0; i < count; i++)
			data[i] = rank + i % 1000;
		ccl::allreduce(data.data(), sums.data(), count, ccl::reduction::sum, communicator).wait();
		for (size_t i = 0; i < count; i++)
			check(sums[i] == size * (size - 1) / 2 + size * (i % 1000), "allreduce", count, i);
		ccl::allgather(data.data(), all.data(), count, communicator).wait();
		for (size_t i = 0; i < count * size; i++)
			check(all[i] == i / count + i % count % 1000, "allgather", count, i);
	}
	ccl::barrier(communicator);
	printf("%d is done\n", rank);
}
